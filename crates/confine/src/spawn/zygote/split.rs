//! Forks a worker through an intermediate process that shares the zygote's memory (`CLONE_VM | CLONE_VFORK`).
//! The intermediate process only enters namespaces, forks the worker and exits; the zygote is suspended
//! meanwhile. So the kernel copies the zygote's page tables once for each worker, not twice.
//!
//! The worker begins on the intermediate process's stack and then switches to its copy of the zygote's stack:
//! [`windlass_split`] returns a second time, in the worker.

use std::io;
use std::os::fd::BorrowedFd;

use super::super::channel::Channel;
use super::inside;

/// Where to fork a worker.
#[derive(Debug)]
pub(crate) struct WorkerForkOrder<'a> {
    /// The process whose namespaces the worker enters.
    pub of: BorrowedFd<'a>,
    pub spaces: libc::c_int,
    /// Receives the worker's pid.
    pub channel: &'a Channel,
}

/// The process in which [`split`] returns.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum SplitSide {
    Worker,
    /// The zygote. The intermediate process has this pid and has exited.
    Zygote {
        intermediate: i32,
    },
}

/// Forks a worker.
///
/// # Safety
/// The caller has one thread.
pub(crate) unsafe fn split(order: &WorkerForkOrder<'_>) -> io::Result<SplitSide> {
    // SAFETY: the caller's promise.
    unsafe { machine::split(order) }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Channel, SplitSide, WorkerForkOrder, inside, io};

    /// The stack of the intermediate process. It makes a few system calls and runs the fork handlers of
    /// libraries.
    const STACK_BYTES: usize = 256 * 1024;

    /// `RSEQ_CPU_ID_REGISTRATION_FAILED`: tells libc that the kernel does not update the processor number of
    /// this thread. That is so after `clone` with shared memory.
    const NOT_REGISTERED: i32 = -2;

    std::arch::global_asm!(
        ".hidden windlass_split",
        ".globl windlass_split",
        // (flags, stack, function, argument, where to store this stack's pointer)
        "windlass_split:",
        "push rbp",
        "push rbx",
        "push r12",
        "push r13",
        "push r14",
        "push r15",
        "mov [r8], rsp",
        "mov r12, rdx",
        "mov r13, rcx",
        "xor edx, edx",
        "xor r10d, r10d",
        "xor r8d, r8d",
        "mov eax, {clone}",
        "syscall",
        "test rax, rax",
        "jz 2f",
        "3:",
        "pop r15",
        "pop r14",
        "pop r13",
        "pop r12",
        "pop rbx",
        "pop rbp",
        "ret",
        "2:",
        "xor ebp, ebp",
        "mov rdi, r13",
        "call r12",
        "ud2",
        ".hidden windlass_resume",
        ".globl windlass_resume",
        // (the stored stack pointer)
        "windlass_resume:",
        "mov rsp, rdi",
        "xor eax, eax",
        "jmp 3b",
        clone = const libc::SYS_clone,
    );

    unsafe extern "C" {
        fn windlass_split(
            flags: libc::c_ulong,
            stack: *mut u8,
            function: extern "C" fn(*const libc::c_void) -> !,
            argument: *const libc::c_void,
            stack_pointer: *mut usize,
        ) -> libc::c_long;
        fn windlass_resume(stack_pointer: usize) -> !;
    }

    struct Intermediate<'a> {
        order: &'a WorkerForkOrder<'a>,
        /// The zygote's stack pointer.
        stack_pointer: usize,
    }

    pub unsafe fn split(order: &WorkerForkOrder<'_>) -> io::Result<SplitSide> {
        let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let mut intermediate = Intermediate { order, stack_pointer: 0 };
        let argument = (&raw const intermediate).cast();
        let stack_pointer = &raw mut intermediate.stack_pointer;
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as libc::c_ulong;
        let top = stack.as_mut_ptr_range().end.cast();
        // SAFETY: the stack is ours and large enough, all pointers outlive the intermediate process, and no
        // other code runs in this memory until that process has exited.
        let answer =
            unsafe { windlass_split(flags, top, run_intermediate, argument, stack_pointer) };
        match answer {
            0 => Ok(SplitSide::Worker),
            1.. => {
                Ok(SplitSide::Zygote { intermediate: i32::try_from(answer).unwrap_or(i32::MAX) })
            }
            _ => Err(io::Error::from_raw_os_error(i32::try_from(-answer).unwrap_or(libc::EINVAL))),
        }
    }

    extern "C" fn run_intermediate(argument: *const libc::c_void) -> ! {
        // SAFETY: the value is on the stack of the zygote, which is suspended.
        let intermediate = unsafe { &*argument.cast::<Intermediate<'_>>() };
        let WorkerForkOrder { of, spaces, channel } = intermediate.order;
        if let Err(errno) = inside::join(*of, *spaces) {
            inside::send_join_error(channel, errno);
            end(1);
        }
        // SAFETY: this memory has one thread, because the zygote is suspended.
        match unsafe { libc::fork() } {
            0 => {
                forget_processor_number();
                // SAFETY: the worker has a copy of the zygote's stack at the same address.
                unsafe { windlass_resume(intermediate.stack_pointer) }
            }
            worker @ 1.. => {
                let channel: &Channel = channel;
                inside::send_worker_pid(channel, worker);
                end(0)
            }
            _ => end(1),
        }
    }

    fn end(code: libc::c_int) -> ! {
        // SAFETY: exits without running any code of the zygote.
        unsafe { libc::_exit(code) }
    }

    /// Invalidates the processor number in the thread's rseq area: libc would otherwise trust the number that
    /// the kernel wrote for the zygote's thread.
    fn forget_processor_number() {
        // SAFETY: the names end with NUL, and the symbols have the types that libc declares.
        unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
            if offset.is_null() || size.is_null() || *size.cast::<libc::c_uint>() == 0 {
                return;
            }
            let thread: *mut u8;
            std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly));
            let numbers = thread.offset(*offset.cast::<isize>()).cast::<i32>();
            // The second field of the rseq area is the processor number.
            numbers.add(1).write(NOT_REGISTERED);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{SplitSide, WorkerForkOrder, io};

    pub unsafe fn split(_: &WorkerForkOrder<'_>) -> io::Result<SplitSide> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}
