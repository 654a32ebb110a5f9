# The starter: a program of one page that enters the attempt's context, drops privileges and executes its command.
#
# rota-start UID GID GROUPS MOUNTS DIRECTORY PROGRAM [PROCS_FILE...] -- ARGV...
#
#   UID, GID   decimal numbers; UID "-" keeps the user of the keeper
#   GROUPS     decimal numbers, each followed by a space, or nothing
#   MOUNTS     "m": join the mount namespace of the process whose pidfd is descriptor 5; "-": stay in the keeper's
#   PROCS_FILE cgroup.procs files, each an absolute path; the process writes itself into them
#
# Descriptor 4 is a pipe: a successful exec closes it, otherwise it gets two numbers of 32 bits, the error and the
# stage (0: the context, 1: directory and program). `starter.py` holds the machine code of this file; a test
# compares them. There is no C library in here, so that nothing in the environment of the task can take effect
# while the process is still root.

        .intel_syntax noprefix
        .globl  _start

        .set    SYS_write, 1
        .set    SYS_open, 2
        .set    SYS_close, 3
        .set    SYS_execve, 59
        .set    SYS_fcntl, 72
        .set    SYS_chdir, 80
        .set    SYS_setgroups, 116
        .set    SYS_setresuid, 117
        .set    SYS_setresgid, 119
        .set    SYS_exit_group, 231
        .set    SYS_setns, 308
        .set    F_SETFD, 2
        .set    FD_CLOEXEC, 1
        .set    O_WRONLY_CLOEXEC, 0x80001
        .set    CLONE_NEWNS, 0x20000
        .set    STATUS, 4
        .set    MOUNTS, 5

        .text
_start:
        mov     rax, [rsp]
        lea     r12, [rsp + 8]                  # r12: argv
        lea     r13, [r12 + rax * 8 + 8]        # r13: envp
        xor     ebp, ebp                        # ebp: the stage

        mov     edi, STATUS
        mov     esi, F_SETFD
        mov     edx, FD_CLOEXEC
        mov     eax, SYS_fcntl
        syscall

        lea     rbx, [r12 + 7 * 8]              # rbx: the next procs file, or "--"
entrances:
        mov     rdi, [rbx]
        add     rbx, 8
        cmp     byte ptr [rdi], '/'
        jne     mounts
        mov     esi, O_WRONLY_CLOEXEC
        mov     eax, SYS_open
        syscall
        test    rax, rax
        js      fail
        mov     r14d, eax
        mov     edi, eax
        lea     rsi, [rip + itself]
        mov     edx, 1
        mov     eax, SYS_write
        syscall
        test    rax, rax
        js      fail
        mov     edi, r14d
        mov     eax, SYS_close
        syscall
        jmp     entrances

mounts:
        mov     rdi, [r12 + 4 * 8]
        cmp     byte ptr [rdi], 'm'
        jne     user
        mov     edi, MOUNTS
        mov     esi, CLONE_NEWNS
        mov     eax, SYS_setns
        syscall
        test    rax, rax
        js      fail
        mov     edi, MOUNTS
        mov     eax, SYS_close
        syscall

user:
        mov     rsi, [r12 + 1 * 8]
        cmp     byte ptr [rsi], '-'
        je      program
        mov     rsi, [r12 + 3 * 8]
        mov     r14, rsp                        # r14: the end of the list of groups, which grows downward
        xor     edi, edi
groups:
        cmp     byte ptr [rsi], 0
        je      set_groups
        call    number
        sub     r14, 4
        mov     [r14 - 64], eax                 # below what `call` pushes
        inc     edi
        jmp     groups
set_groups:
        lea     rsi, [r14 - 64]
        mov     eax, SYS_setgroups
        syscall
        test    rax, rax
        js      fail
        mov     rsi, [r12 + 2 * 8]
        call    number
        mov     edi, eax
        mov     esi, eax
        mov     edx, eax
        mov     eax, SYS_setresgid
        syscall
        test    rax, rax
        js      fail
        mov     rsi, [r12 + 1 * 8]
        call    number
        mov     edi, eax
        mov     esi, eax
        mov     edx, eax
        mov     eax, SYS_setresuid
        syscall
        test    rax, rax
        js      fail

program:
        inc     ebp
        mov     rdi, [r12 + 5 * 8]
        mov     eax, SYS_chdir
        syscall
        test    rax, rax
        js      fail
        mov     rdi, [r12 + 6 * 8]
        mov     rsi, rbx
        mov     rdx, r13
        mov     eax, SYS_execve
        syscall
fail:
        neg     eax                             # clears the upper half, too
        shl     rbp, 32
        or      rax, rbp
        push    rax
        mov     edi, STATUS
        mov     rsi, rsp
        mov     edx, 8
        mov     eax, SYS_write
        syscall
        mov     edi, 127
        mov     eax, SYS_exit_group
        syscall

number:                                         # rsi: digits -> eax; rsi: behind them and the space that follows
        xor     eax, eax
digit:
        movzx   edx, byte ptr [rsi]
        test    edx, edx
        je      whole
        inc     rsi
        sub     edx, '0'
        jb      whole
        imul    eax, eax, 10
        add     eax, edx
        jmp     digit
whole:
        ret

itself: .ascii  "0"
