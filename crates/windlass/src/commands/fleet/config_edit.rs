//! Changes the table `[fleet]` of the user's `config.toml`, and keeps the rest of the file. The file is replaced in one
//! step.

use std::fs::Permissions;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;

use anyhow::{Context as _, bail};
use toml_edit::DocumentMut;

use crate::config_file;
use crate::fleet_table::FleetTable;

/// The access that others have to a file.
const OTHERS: u32 = 0o077;

/// The file as it will be.
pub struct ConfigEdit {
    path: PathBuf,
    text: String,
    mode: u32,
}

impl ConfigEdit {
    /// The file with this table. Keys that the table does not set stay.
    pub fn with_table(table: &FleetTable) -> anyhow::Result<Self> {
        let mut edit = Self::read()?;
        edit.text = with_table(&edit.text, table)?;
        if table.has_password() {
            edit.mode &= !OTHERS;
        }
        Ok(edit)
    }

    /// The file without the table.
    pub fn without_table() -> anyhow::Result<Self> {
        let mut edit = Self::read()?;
        edit.text = without_table(&edit.text)?;
        Ok(edit)
    }

    fn read() -> anyhow::Result<Self> {
        let path = config_file::path();
        // A link stays a link: its target is replaced.
        let path = std::fs::canonicalize(&path).unwrap_or(path);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        let mode =
            std::fs::metadata(&path).map_or(0o600, |about| about.permissions().mode() & 0o777);
        Ok(Self { path, text, mode })
    }

    pub fn write(&self) -> anyhow::Result<()> {
        let written = || {
            let parent = self.path.parent().context("it has no directory")?;
            std::fs::create_dir_all(parent)?;
            let mut file = tempfile::NamedTempFile::new_in(parent)?;
            file.write_all(self.text.as_bytes())?;
            file.as_file().set_permissions(Permissions::from_mode(self.mode))?;
            file.as_file().sync_all()?;
            file.persist(&self.path)?;
            anyhow::Ok(())
        };
        written().with_context(|| format!("cannot write {}", self.path.display()))
    }
}

/// A text of the file with this table.
pub(super) fn with_table(text: &str, table: &FleetTable) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    let item = document.as_table_mut().entry("fleet").or_insert(toml_edit::table());
    match item.as_table_like_mut() {
        Some(fleet) => table.write(fleet),
        None => bail!("`fleet` of the configuration file is not a table; remove it"),
    }
    Ok(printed(&document, text))
}

fn without_table(text: &str) -> anyhow::Result<String> {
    let mut document = parse(text)?;
    if document.as_table_mut().remove("fleet").is_none() {
        return Ok(text.to_owned());
    }
    Ok(printed(&document, text))
}

fn parse(text: &str) -> anyhow::Result<DocumentMut> {
    let parsed = text.parse::<DocumentMut>();
    parsed.context("the configuration file is not TOML; `windlass config check` names the line")
}

/// The document with the line ends of the text: the library writes LF only.
fn printed(document: &DocumentMut, text: &str) -> String {
    let lines = document.to_string().replace("\r\n", "\n");
    if text.contains("\r\n") { lines.replace('\n', "\r\n") } else { lines }
}

#[cfg(test)]
mod tests {
    use windlass_protocol::NodeName;

    use super::*;
    use crate::fleet_table::new_settings;

    fn table(node: &str) -> FleetTable {
        let settings = new_settings(vec!["nats://10.0.0.9:4222".to_owned()], 3, None, None);
        let node = NodeName::parse(node).unwrap();
        FleetTable::new(node, "10.0.0.1:7421", None, settings).unwrap()
    }

    #[test]
    fn the_rest_of_the_file_stays_as_it_is() {
        for text in [
            "",
            "# mine\n[node]\nlog = \"debug\" # loud\n",
            "start_figures = true\n\n[node]\nretain_age = \"3d\"\n",
            "[node]\r\nlog = \"debug\"\r\n",
        ] {
            let with = with_table(text, &table("n1")).unwrap();
            assert!(with.starts_with(text), "{with:?}");
            assert!(with.contains("[fleet]") && with.contains("node = \"n1\""), "{with:?}");
            assert!(config_file::check(&with).is_empty(), "{with:?}");
            assert_eq!(without_table(&with).unwrap(), text);
        }
        assert_eq!(without_table("[node]\n").unwrap(), "[node]\n");
    }

    #[test]
    fn a_table_that_is_there_keeps_its_other_keys() {
        let before =
            "[fleet]\nnode = \"n1\" # mine\ncredentials = \"/c\"\n\n[node]\nlog = \"info\"\n";
        let after = with_table(before, &table("n1")).unwrap();
        assert!(after.contains("credentials = \"/c\"") && after.contains("[node]"), "{after}");
        assert_eq!(after.matches("[fleet]").count(), 1, "{after}");
        assert!(config_file::check(&after).is_empty(), "{after}");
        assert!(with_table("fleet = 3\n", &table("n1")).is_err());
        assert!(with_table("[node\n", &table("n1")).is_err());
    }
}
