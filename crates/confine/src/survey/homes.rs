//! Home directories of the machine's users, and directories of programs on PATH. Shells run startup files and
//! programs from these directories, so a session must not change them.

use std::path::{Path, PathBuf};

use windlass_protocol::policy::HOME_DIRECTORIES;

/// Login shells of service accounts: no user logs in to their homes.
const NO_LOGIN: [&str; 3] = ["nologin", "false", "sync"];

/// Home directories of this user and of every user who can log in, as real paths.
pub fn homes() -> Vec<PathBuf> {
    // As bytes: the full name of a user need not be UTF-8.
    let passwd = std::fs::read("/etc/passwd").unwrap_or_default();
    let passwd = String::from_utf8_lossy(&passwd);
    let mut homes: Vec<PathBuf> =
        std::env::home_dir().into_iter().chain(listed(&passwd)).map(real_or_same).collect();
    homes.retain(|home| home.parent().is_some());
    homes.sort();
    homes.dedup();
    homes
}

/// Directories on this process's PATH, as real paths.
pub fn programs() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let named = std::env::split_paths(&path).filter(|directory| directory.is_absolute());
    let mut programs: Vec<PathBuf> = named.map(real_or_same).collect();
    programs.sort();
    programs.dedup();
    programs
}

/// Whether a session that works at this real path cannot change what shells run next. The path is not a home,
/// no home lies below it, and it is not in a directory of programs or startup files.
pub fn is_a_place_to_work(here: &Path, homes: &[PathBuf], programs: &[PathBuf]) -> bool {
    let holds_home = homes.iter().any(|home| home.starts_with(here));
    let of_home =
        |home: &PathBuf| HOME_DIRECTORIES.iter().any(|name| here.starts_with(home.join(name)));
    let holds_programs = programs.iter().any(|programs| here.starts_with(programs));
    !holds_home && !holds_programs && !homes.iter().any(of_home)
}

fn listed(passwd: &str) -> Vec<PathBuf> {
    let home = |line: &str| -> Option<PathBuf> {
        let mut fields = line.split(':').skip(5);
        let (home, shell) = (fields.next()?, fields.next()?);
        let logs_in = !NO_LOGIN.iter().any(|name| shell.trim_end().ends_with(name));
        (logs_in && home.starts_with('/')).then(|| home.into())
    };
    passwd.lines().filter_map(home).collect()
}

fn real_or_same(path: PathBuf) -> PathBuf {
    std::fs::canonicalize(&path).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_users_who_can_log_in_have_homes() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/usr/sbin:/usr/sbin/nologin\n\
            ada:x:1000:1000::/people/ada:/bin/zsh\nbroken:x\n";
        assert_eq!(listed(passwd), [PathBuf::from("/root"), PathBuf::from("/people/ada")]);
    }

    #[test]
    fn no_session_works_in_a_home_above_a_home_or_among_programs() {
        let homes = [PathBuf::from("/people/ada")];
        let programs = [PathBuf::from("/people/ada/go/bin"), PathBuf::from("/code/.venv/bin")];
        let may = |here: &str| is_a_place_to_work(Path::new(here), &homes, &programs);
        for refused in [
            "/",
            "/people",
            "/people/ada",
            "/people/ada/.config/fish",
            "/people/ada/.cargo/bin",
            "/people/ada/bin",
            "/people/ada/go/bin",
            "/code/.venv/bin",
        ] {
            assert!(!may(refused), "{refused}");
        }
        for allowed in ["/people/ada/project", "/people/bob", "/code", "/people/ada/go"] {
            assert!(may(allowed), "{allowed}");
        }
    }
}
