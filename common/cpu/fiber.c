/* SPDX-License-Identifier: Apache-2.0 */
/* Fibers: stacks, and the switch from one to another.
 *
 * A switch is an ordinary function call whose return happens on another stack. By the rules of C a
 * call preserves a few registers only, so these and the stack pointer are all that has to be saved:
 * some ten instructions, and no system call. */
#include "kernel.h"

#include <string.h>

/* Saves the preserved registers on the stack and the stack pointer at *from; restores those of
 * `to`, and returns there. */
void cpu_switch(void **from, void *to);
#if defined(__x86_64__)
__asm__(".globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, @function\ncpu_switch:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
        ".size cpu_switch, .-cpu_switch\n");
enum { SAVED = 8, RETURN_TO = 6 }; /* words: six registers, body, and where that would return to */
#elif defined(__aarch64__)
__asm__(".globl cpu_switch\n.hidden cpu_switch\n.type cpu_switch, %function\ncpu_switch:\n"
        "sub sp, sp, #160\nstp x19, x20, [sp]\nstp x21, x22, [sp, #16]\nstp x23, x24, [sp, #32]\n"
        "stp x25, x26, [sp, #48]\nstp x27, x28, [sp, #64]\nstp x29, x30, [sp, #80]\n"
        "stp d8, d9, [sp, #96]\nstp d10, d11, [sp, #112]\nstp d12, d13, [sp, #128]\n"
        "stp d14, d15, [sp, #144]\nmov x9, sp\nstr x9, [x0]\nmov sp, x1\n"
        "ldp x19, x20, [sp]\nldp x21, x22, [sp, #16]\nldp x23, x24, [sp, #32]\n"
        "ldp x25, x26, [sp, #48]\nldp x27, x28, [sp, #64]\nldp x29, x30, [sp, #80]\n"
        "ldp d8, d9, [sp, #96]\nldp d10, d11, [sp, #112]\nldp d12, d13, [sp, #128]\n"
        "ldp d14, d15, [sp, #144]\nadd sp, sp, #160\nret\n.size cpu_switch, .-cpu_switch\n");
enum { SAVED = 20, RETURN_TO = 11 };
#else
#error "the stand-in runs kernels on x86-64 and aarch64; for another processor cpu_switch is needed"
#endif

#ifdef __SANITIZE_ADDRESS__
void __sanitizer_start_switch_fiber(void **fake, const void *stack, size_t bytes);
void __sanitizer_finish_switch_fiber(void *fake, const void **stack, size_t *bytes);
void __asan_unpoison_memory_region(const volatile void *at, size_t bytes);
#define ANNOTATE(call) call
#else
#define ANNOTATE(call)
#endif

void fiber_begin(struct fiber *f, void (*body)(void))
{
  void **sp = (void **)(void *)(f->stack + STACK_BYTES) - SAVED;
  ANNOTATE(__asan_unpoison_memory_region(f->stack, STACK_BYTES);)
  memset(sp, 0, SAVED * sizeof(*sp));
  sp[RETURN_TO] = (void *)(uintptr_t)body;
  f->sp = sp;
  f->bytes = STACK_BYTES;
}

void fiber_begun(void)
{
  ANNOTATE(__sanitizer_finish_switch_fiber(NULL, NULL, NULL);)
}

void fiber_of_system(struct fiber *f)
{
#ifdef __SANITIZE_ADDRESS__
  pthread_attr_t attributes;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, (void **)&f->stack, &f->bytes);
  pthread_attr_destroy(&attributes);
#else
  (void)f;
#endif
}

void fiber_switch(struct fiber *from, struct fiber *to, bool ends)
{
  ANNOTATE(__sanitizer_start_switch_fiber(ends ? NULL : &from->fake, to->stack, to->bytes);)
  (void)ends;
  cpu_switch(&from->sp, to->sp);
  ANNOTATE(__sanitizer_finish_switch_fiber(from->fake, NULL, NULL);)
}
