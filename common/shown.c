/* SPDX-License-Identifier: Apache-2.0 */
#include "shown.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void keep_one_line(char *text)
{
  for (; *text; text++)
    if (iscntrl((unsigned char)*text)) *text = '?';
}

const char *shown(const char *text, char shown[SHOWN_TEXT])
{
  enum { HALF = SHOWN_TEXT / 2 - 16 };
  const size_t length = strlen(text);
  if (length < SHOWN_TEXT)
    snprintf(shown, SHOWN_TEXT, "%s", text);
  else
    snprintf(shown, SHOWN_TEXT, "%.*s...(%zu bytes)...%s", HALF, text, length,
             text + length - HALF);
  keep_one_line(shown);
  return shown;
}
