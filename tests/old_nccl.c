/* SPDX-License-Identifier: Apache-2.0 */
/* A libnccl.so.2 that is too old: to be put in front of the real one by LD_LIBRARY_PATH. It has
 * nothing but its version, as an old library lacks the calls that came later.
 *
 *   gcc -shared -fPIC -Wl,-soname,libnccl.so.2 -o old/libnccl.so.2 tests/old_nccl.c
 *   LD_LIBRARY_PATH=old ./allreduce_ub      # says so in one line, exit code 77 */
#ifndef VERSION
#define VERSION 21805
#endif

int ncclGetVersion(int *version)
{
  *version = VERSION;
  return 0;
}

const char *ncclGetErrorString(int result)
{
  (void)result;
  return "no error";
}

const char *ncclGetLastError(void *comm)
{
  (void)comm;
  return "";
}
