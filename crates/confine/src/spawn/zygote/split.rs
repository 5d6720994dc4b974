//! Forking a worker through a process that is no copy. The one between the zygote and the worker only
//! enters namespaces, forks and ends: it shares the zygote's memory, which stands still meanwhile. So
//! that memory is copied once for a worker, and not twice.
//!
//! The worker begins on the stack of the one between and goes back to the zygote's, of which it has a
//! copy: [`windlass_split`] returns in it once more.

use std::io;
use std::os::fd::BorrowedFd;

use super::super::channel::Channel;
use super::inside;

/// Where a worker is to be forked.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    /// Whose namespaces the worker is in.
    pub of: BorrowedFd<'a>,
    pub spaces: libc::c_int,
    /// Where its number is told.
    pub channel: &'a Channel,
}

/// Who goes on.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Split {
    Worker,
    /// The zygote: the one between has this number, and has ended.
    Zygote {
        between: i32,
    },
}

/// Forks a worker.
///
/// # Safety
/// The caller has one thread.
pub(crate) unsafe fn split(order: &Order<'_>) -> io::Result<Split> {
    // SAFETY: the caller's promise.
    unsafe { machine::split(order) }
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use super::{Channel, Order, Split, inside, io};

    /// What the one between may need: it makes a few system calls, and runs what libraries do before
    /// and after a fork.
    const STACK_BYTES: usize = 256 * 1024;

    /// Tells the C library that the kernel does not keep the number of the processor up to date for
    /// this thread: as for every thread that was made of one with shared memory.
    const NOT_REGISTERED: i32 = -2;

    std::arch::global_asm!(
        ".hidden windlass_split",
        ".globl windlass_split",
        // (flags, stack, function, argument, where to keep this stack's place)
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
        // (the place on the other stack)
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
            place: *mut usize,
        ) -> libc::c_long;
        fn windlass_resume(place: usize) -> !;
    }

    struct Between<'a> {
        order: &'a Order<'a>,
        /// Where the zygote's stack is.
        place: usize,
    }

    pub unsafe fn split(order: &Order<'_>) -> io::Result<Split> {
        let mut stack = vec![0_u128; STACK_BYTES / size_of::<u128>()];
        let mut between = Between { order, place: 0 };
        let (argument, place) = ((&raw const between).cast(), &raw mut between.place);
        let flags = (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as libc::c_ulong;
        let top = stack.as_mut_ptr_range().end.cast();
        // SAFETY: the stack is ours and large enough, all that is pointed to outlives the one between,
        // and nothing else runs in this memory until that one has ended.
        let answer = unsafe { windlass_split(flags, top, go_between, argument, place) };
        match answer {
            0 => Ok(Split::Worker),
            1.. => Ok(Split::Zygote { between: i32::try_from(answer).unwrap_or(i32::MAX) }),
            _ => Err(io::Error::from_raw_os_error(i32::try_from(-answer).unwrap_or(libc::EINVAL))),
        }
    }

    extern "C" fn go_between(between: *const libc::c_void) -> ! {
        // SAFETY: it is on the zygote's stack, which stands still.
        let between = unsafe { &*between.cast::<Between<'_>>() };
        let Order { of, spaces, channel } = between.order;
        if let Err(errno) = inside::join(*of, *spaces) {
            inside::say_not_joined(channel, errno);
            end(1);
        }
        // SAFETY: one thread, as the zygote, whose memory this is.
        match unsafe { libc::fork() } {
            0 => {
                forget_processor();
                // SAFETY: the zygote's stack is copied, and stands where it stood.
                unsafe { windlass_resume(between.place) }
            }
            worker @ 1.. => {
                let channel: &Channel = channel;
                inside::say_worker(channel, worker);
                end(0)
            }
            _ => end(1),
        }
    }

    fn end(code: libc::c_int) -> ! {
        // SAFETY: ends this process, and runs nothing of the zygote's.
        unsafe { libc::_exit(code) }
    }

    /// The C library believes the number that the kernel wrote for the zygote's thread.
    fn forget_processor() {
        // SAFETY: names that end with 0; what is found is read as what the C library declares it.
        unsafe {
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
            if offset.is_null() || size.is_null() || *size.cast::<libc::c_uint>() == 0 {
                return;
            }
            let thread: *mut u8;
            std::arch::asm!("mov {}, fs:0", out(reg) thread, options(nostack, readonly));
            let numbers = thread.offset(*offset.cast::<isize>()).cast::<i32>();
            // The second of its numbers is the processor's.
            numbers.add(1).write(NOT_REGISTERED);
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod machine {
    use super::{Order, Split, io};

    pub unsafe fn split(_: &Order<'_>) -> io::Result<Split> {
        Err(io::Error::from_raw_os_error(libc::ENOSYS))
    }
}
