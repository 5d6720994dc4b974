//! Random ids of sessions whose clients choose none.

use windlass_protocol::{SessionId, TenantName};

use crate::clock::now_ms;

/// A random session id: short, and so unlikely to be taken that no retry is needed.
pub(crate) fn new_id() -> SessionId {
    let mut random = [0u8; 8];
    if rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty()).is_err() {
        random = now_ms().to_be_bytes();
    }
    let number = u64::from_be_bytes(random);
    let letters: String = (0..10)
        .map(|place| {
            let digit = (number >> (place * 5)) & 31;
            char::from(b"abcdefghijkmnpqrstuvwxyz23456789"[digit as usize])
        })
        .collect();
    SessionId::parse(format!("s{letters}")).expect("letters and digits make an id")
}

/// A random id for a session of this tenant, or of none.
pub(crate) fn new_id_of(tenant: Option<&TenantName>) -> SessionId {
    let id = new_id();
    match tenant {
        None => id,
        Some(tenant) => {
            SessionId::within(id.as_str(), tenant).expect("a short name fits beside every tenant's")
        }
    }
}
