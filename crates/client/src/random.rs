//! Random bytes from the kernel, as text.

/// `BYTES` random bytes as hexadecimal digits.
///
/// # Panics
/// If the kernel gives no random bytes. It always does once it has booted.
pub(crate) fn hex<const BYTES: usize>() -> String {
    let mut random = [0u8; BYTES];
    let mut filled = 0;
    while filled < random.len() {
        match rustix::rand::getrandom(&mut random[filled..], rustix::rand::GetRandomFlags::empty())
        {
            Ok(count) => filled += count,
            Err(rustix::io::Errno::INTR) => {}
            Err(fault) => panic!("the kernel gives no random bytes: {fault}"),
        }
    }
    let digits = random.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from_digit(u32::from(digit), 16).expect("below 16")).collect()
}
