/* SPDX-License-Identifier: Apache-2.0 */
/* What a user typed, as it may stand in a message: in one line, and so short that the reason after
 * it is not cut off. */
#ifndef COMMON_SHOWN_H
#define COMMON_SHOWN_H

enum { SHOWN_TEXT = 256 };

/* Writes `text` to `shown` and returns it: without its middle if it is long, with ? in place of
 * newlines and other control characters. */
const char *shown(const char *text, char shown[SHOWN_TEXT]);

/* Puts ? in place of newlines and other control characters. */
void keep_one_line(char *text);

#endif
