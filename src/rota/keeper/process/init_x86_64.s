# The init process of a pid namespace: it mounts a /proc of its own, lets the kernel reap orphans, and waits.
#
# rota-cell OPTIONS
#
#   OPTIONS[0]  "m": create a mount namespace with a /proc that shows this pid namespace only; "-": do not
#   OPTIONS[1]  "b": bound, end with the keeper, and everything in here with it; "s": stay until nothing else is left
#
# Descriptor 0 is a pipe whose writing end only the keeper has; nothing is ever written to it. Descriptor 4 gets two
# numbers of 32 bits once the namespace can be used: the error, or 0, and 0. `pid_namespace.py` holds the machine code
# of this file; a test compares them.

        .intel_syntax noprefix
        .globl  _start

        .set    SYS_read, 0
        .set    SYS_write, 1
        .set    SYS_close, 3
        .set    SYS_rt_sigaction, 13
        .set    SYS_nanosleep, 35
        .set    SYS_kill, 62
        .set    SYS_chdir, 80
        .set    SYS_mount, 165
        .set    SYS_exit_group, 231
        .set    SYS_unshare, 272
        .set    SIGCHLD, 17
        .set    SIGSET_BYTES, 8
        .set    ESRCH, 3
        .set    CLONE_NEWNS, 0x20000
        .set    REC_SLAVE, 0x84000              # later mounts of the machine propagate here; none propagates out
        .set    NOSUID_NODEV_NOEXEC, 14
        .set    STATUS, 4

        .text
_start:
        mov     r12, [rsp + 16]                 # r12: the options

        mov     edi, SIGCHLD                    # ignored: the kernel reaps orphans
        lea     rsi, [rip + ignored]
        xor     edx, edx
        mov     r10d, SIGSET_BYTES
        mov     eax, SYS_rt_sigaction
        syscall
        test    rax, rax
        js      tell

        lea     rdi, [rip + root]
        mov     eax, SYS_chdir
        syscall
        test    rax, rax
        js      tell

        xor     eax, eax
        cmp     byte ptr [r12], 'm'
        jne     tell
        mov     edi, CLONE_NEWNS
        mov     eax, SYS_unshare
        syscall
        test    rax, rax
        js      tell
        xor     edi, edi
        lea     rsi, [rip + root]
        xor     edx, edx
        mov     r10d, REC_SLAVE
        xor     r8d, r8d
        mov     eax, SYS_mount
        syscall
        test    rax, rax
        js      tell
        lea     rdi, [rip + proc + 1]
        lea     rsi, [rip + proc]
        mov     rdx, rdi
        mov     r10d, NOSUID_NODEV_NOEXEC
        xor     r8d, r8d
        mov     eax, SYS_mount
        syscall

tell:
        neg     eax                             # clears the upper half, too
        push    rax
        mov     edi, STATUS
        mov     rsi, rsp
        mov     edx, 8
        mov     eax, SYS_write
        syscall
        mov     edi, STATUS
        mov     eax, SYS_close
        syscall
        cmp     dword ptr [rsp], 0
        jne     leave

        xor     edi, edi                        # until the keeper has ended
        mov     rsi, rsp
        mov     edx, 1
        xor     eax, eax
        syscall
        cmp     byte ptr [r12 + 1], 'b'
        je      leave
alone:
        mov     rdi, -1                         # is there any process in here but this one?
        xor     esi, esi
        mov     eax, SYS_kill
        syscall
        cmp     eax, -ESRCH
        je      leave
        lea     rdi, [rip + second]
        xor     esi, esi
        mov     eax, SYS_nanosleep
        syscall
        jmp     alone
leave:
        xor     edi, edi
        mov     eax, SYS_exit_group
        syscall

        .balign 8
ignored: .quad  1, 0, 0, 0
second: .quad   1, 0
root:   .asciz  "/"
proc:   .asciz  "/proc"
