//! Runs a filter program in tests, as the kernel would.

use super::search::FilterProgram;

/// The program's result for a call with these arguments, and the number of instructions that it took.
pub(super) fn run(
    program: &FilterProgram,
    architecture: u32,
    call: u32,
    arguments: [u64; 6],
) -> (u32, usize) {
    let (mut at, mut loaded, mut steps) = (0, 0u32, 0);
    loop {
        let step = &program[at];
        steps += 1;
        at += 1;
        let further = |holds| usize::from(if holds { step.jt } else { step.jf });
        match step.code {
            0x20 => {
                loaded = match step.k {
                    0 => call,
                    4 => architecture,
                    offset => {
                        let argument = arguments[(offset as usize - 16) / 8];
                        assert_eq!(offset % 8, 0, "the lower half of an argument");
                        (argument & 0xffff_ffff) as u32
                    }
                }
            }
            0x54 => loaded &= step.k,
            0x15 => at += further(loaded == step.k),
            0x35 => at += further(loaded >= step.k),
            0x45 => at += further(loaded & step.k != 0),
            0x05 => at += step.k as usize,
            0x06 => return (step.k, steps),
            other => panic!("{other:#x}"),
        }
    }
}
