//! Warnings about the disk with the node's state, for `status` and `doctor`.

use windlass_protocol::storage::{IndexStorage, StateStorage};

use crate::counted::counted;
use crate::size;

/// With less free space than this the disk counts as full: the next turn may have no space for its output.
const FULL_BYTES: u64 = 1 << 20;

/// One sentence per problem.
pub fn notes(storage: &StateStorage) -> Vec<String> {
    let mut notes = Vec::new();
    if let Some(free) = storage.free_bytes.filter(|free| *free < FULL_BYTES) {
        notes.push(format!(
            "the disk is full ({} free): turns fail with disk_full until there is free space",
            size::show(free)
        ));
    }
    if storage.index == IndexStorage::Memory {
        notes.push(
            "the index is in memory because the disk was full when the node started; \
             the next start of the node writes it to the disk"
                .to_owned(),
        );
    }
    match storage.log_lines_dropped {
        0 => {}
        count => {
            let lines = counted(count, "line", "lines");
            notes.push(format!("{lines} of the node's log could not be written"));
        }
    }
    match storage.audit_records_dropped {
        0 => {}
        count => {
            let records = counted(count, "record", "records");
            notes.push(format!("{records} of the audit log could not be written"));
        }
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_problems_are_listed() {
        let mut storage = StateStorage {
            free_bytes: Some(FULL_BYTES),
            index: IndexStorage::File,
            log_lines_dropped: 0,
            audit_records_dropped: 0,
        };
        assert_eq!(notes(&storage), Vec::<String>::new());
        storage.free_bytes = Some(512);
        storage.index = IndexStorage::Memory;
        storage.log_lines_dropped = 3;
        storage.audit_records_dropped = 1;
        let told = notes(&storage);
        assert_eq!(told.len(), 4);
        assert!(told[0].contains("512 B free") && told[0].contains("disk_full"), "{told:?}");
        assert!(told[2].starts_with("3 lines"), "{told:?}");
        assert!(told[3].starts_with("1 record of the audit log"), "{told:?}");
    }
}
