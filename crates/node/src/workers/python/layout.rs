//! Finds the locations of the code that an interpreter loads when it starts, without running it: its
//! program, its virtual environment, its library, its site directories and the paths in their `.pth` files.
//! Modules that Python runs by itself (`sitecustomize`, `usercustomize`, lines of `.pth` files) are all in
//! these locations.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::trust::way::ResolveError;
use crate::trust::{CodeDirs, Distrust};

/// Maximum number of entries in a directory. A directory with more is not trusted.
const ENTRIES_MAX: usize = 16 * 1024;

/// The longest `pyvenv.cfg` or `.pth` file. A longer one is not trusted.
const TEXT_BYTES_MAX: u64 = 256 * 1024;

/// The library directories of an installation. The last is Debian's, for packages of the administrator.
const LIBRARIES: [&str; 3] = ["lib", "lib64", "local/lib"];

const SITE_DIRECTORIES: [&str; 2] = ["site-packages", "dist-packages"];

/// The code locations of the interpreter at `program`, for the user with this home directory.
pub(super) fn places(program: &Path, home: Option<&Path>) -> Result<CodeDirs, Distrust> {
    let mut places = CodeDirs::default();
    // The zygote's working directory, where Python looks for modules first.
    places.directories.insert(PathBuf::from("/"));
    let real = places.add_way(program)?;
    let mut prefixes: BTreeSet<PathBuf> = prefix_of(&real).into_iter().collect();
    // Python looks for `pyvenv.cfg` beside its program and one directory above.
    for venv in program.ancestors().skip(1).take(2).filter(|path| super::is_venv(path)) {
        prefixes.extend(base_of(&mut places, venv)?);
        prefixes.insert(places.add_way(venv)?);
    }
    for library in prefixes.iter().flat_map(|prefix| LIBRARIES.map(|name| prefix.join(name))) {
        if exists(&library)? {
            let library = places.add_tree(&library)?;
            add_library(&mut places, &library)?;
        }
    }
    if let Some(home) = home {
        add_user_site(&mut places, home)?;
    }
    Ok(places)
}

/// The installation prefix: the parent of the program's `bin` directory.
fn prefix_of(program: &Path) -> Option<PathBuf> {
    Some(program.parent()?.parent()?.to_owned())
}

/// The installation that a virtual environment was made from, according to `pyvenv.cfg`.
fn base_of(places: &mut CodeDirs, venv: &Path) -> Result<Option<PathBuf>, Distrust> {
    let file = venv.join("pyvenv.cfg");
    places.add_way(&file)?;
    let text = text_of(&file)?;
    let value = text.lines().find_map(|line| {
        let (name, value) = line.split_once('=')?;
        name.trim().eq_ignore_ascii_case("home").then(|| value.trim())
    });
    let Some(bin) = value else { return Ok(None) };
    let bin = places.add_way(Path::new(bin))?;
    Ok(bin.parent().map(Path::to_owned))
}

/// Adds the `python3*` directories of a library, with their site directories.
fn add_library(places: &mut CodeDirs, library: &Path) -> Result<(), Distrust> {
    for entry in entries(library)? {
        if !entry.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")) {
            continue;
        }
        let found = places.add_tree(&entry)?;
        for site in SITE_DIRECTORIES.map(|name| found.join(name)) {
            if exists(&site)? {
                let site = places.add_tree(&site)?;
                add_site(places, &site)?;
            }
        }
    }
    Ok(())
}

/// Adds the directory of the user's own packages. It is added even if it is missing, because a session must
/// not be able to make it.
fn add_user_site(places: &mut CodeDirs, home: &Path) -> Result<(), Distrust> {
    let library = home.join(".local/lib");
    places.add_named(&library)?;
    match exists(&library)? {
        true => {
            let library = places.add_way(&library)?;
            add_library(places, &library)
        }
        false => Ok(()),
    }
}

/// Adds the paths in a site directory's `.pth` files, and the targets of its symlinks.
fn add_site(places: &mut CodeDirs, site: &Path) -> Result<(), Distrust> {
    for entry in entries(site)? {
        if entry.is_symlink() {
            places.add_way(&entry)?;
        }
        if entry.extension().is_some_and(|extension| extension == "pth") {
            for named in paths_in(&text_of(&entry)?) {
                places.add_named(&site.join(named))?;
            }
        }
    }
    Ok(())
}

/// The lines of a `.pth` file that are paths. Other lines are comments or code.
fn paths_in(text: &str) -> impl Iterator<Item = &str> {
    let is_code = |line: &str| line.starts_with("import ") || line.starts_with("import\t");
    text.lines()
        .map(str::trim_end)
        .filter(move |line| !line.is_empty() && !line.starts_with('#') && !is_code(line))
}

fn entries(directory: &Path) -> Result<Vec<PathBuf>, Distrust> {
    let listed = std::fs::read_dir(directory).map_err(|error| unreadable(directory, &error))?;
    let found: Result<Vec<PathBuf>, io::Error> =
        listed.take(ENTRIES_MAX + 1).map(|entry| entry.map(|entry| entry.path())).collect();
    let found = found.map_err(|error| unreadable(directory, &error))?;
    match found.len() > ENTRIES_MAX {
        true => Err(Distrust::TooMany(directory.to_owned())),
        false => Ok(found),
    }
}

fn text_of(file: &Path) -> Result<String, Distrust> {
    let mut bytes = Vec::new();
    let about = file.metadata().ok().filter(Metadata::is_file);
    if about.as_ref().is_some_and(|about| about.nlink() > 1) {
        return Err(Distrust::Linked(file.to_owned()));
    }
    let read = match about.is_some() {
        true => File::open(file)
            .and_then(|opened| opened.take(TEXT_BYTES_MAX + 1).read_to_end(&mut bytes)),
        false => Err(io::Error::other("it is not a regular file")),
    };
    read.map_err(|error| unreadable(file, &error))?;
    if bytes.len() as u64 > TEXT_BYTES_MAX {
        return Err(unreadable(file, &io::Error::other("it is too long")));
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Whether the path exists. A dangling symlink counts as existing.
fn exists(path: &Path) -> Result<bool, Distrust> {
    match path.symlink_metadata() {
        Ok(_) => Ok(true),
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            Ok(false)
        }
        Err(error) => {
            Err(ResolveError::Look { path: path.to_owned(), why: error.kind().to_string() }.into())
        }
    }
}

fn unreadable(path: &Path, error: &io::Error) -> Distrust {
    Distrust::Unreadable { path: path.to_owned(), why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    struct FakeInstallation {
        _dir: tempfile::TempDir,
        root: PathBuf,
    }

    impl FakeInstallation {
        /// An installation, and a virtual environment made from it.
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            let root = dir.path().canonicalize().unwrap();
            let installation = Self { _dir: dir, root };
            for name in ["base/bin", "base/lib/python3.11/site-packages", "home", "work/src"] {
                std::fs::create_dir_all(installation.at(name)).unwrap();
            }
            std::fs::create_dir_all(installation.site()).unwrap();
            std::fs::create_dir_all(installation.at("venv/bin")).unwrap();
            std::fs::write(installation.at("base/bin/python3.11"), "").unwrap();
            symlink(installation.at("base/bin/python3.11"), installation.at("venv/bin/python"))
                .unwrap();
            let text =
                format!("Home = {}\nversion = 3.11\n", installation.at("base/bin").display());
            std::fs::write(installation.at("venv/pyvenv.cfg"), text).unwrap();
            installation
        }

        fn at(&self, name: &str) -> PathBuf {
            self.root.join(name)
        }

        fn site(&self) -> PathBuf {
            self.at("venv/lib/python3.11/site-packages")
        }

        fn places(&self) -> CodeDirs {
            places(&self.at("venv/bin/python"), Some(&self.at("home"))).unwrap()
        }
    }

    #[test]
    fn a_virtual_environment_has_its_own_directories_and_those_of_its_base() {
        let installation = FakeInstallation::new();
        let places = installation.places();
        for name in ["venv/bin", "base/bin", "home"] {
            assert!(places.directories.contains(&installation.at(name)), "{name}: {places:?}");
        }
        for name in ["venv/lib", "base/lib", "base/lib/python3.11/site-packages"] {
            assert!(places.trees.contains(&installation.at(name)), "{name}: {places:?}");
        }
        std::fs::create_dir_all(installation.at("home/.local/lib/python3.11/site-packages"))
            .unwrap();
        let user = installation.at("home/.local/lib/python3.11/site-packages");
        assert!(installation.places().trees.contains(&user));
    }

    #[test]
    fn paths_in_pth_files_and_targets_of_symlinks_are_included() {
        let installation = FakeInstallation::new();
        let pth = installation.site().join("editable.pth");
        let text = "# a comment\nimport os; os\n../../../../work/src\n";
        std::fs::write(&pth, text).unwrap();
        assert!(installation.places().trees.contains(&installation.at("work/src")));
        std::fs::write(&pth, installation.at("work/later/src").display().to_string()).unwrap();
        assert!(
            installation.places().directories.contains(&installation.at("work")),
            "the directory in which it could be made"
        );
        std::fs::remove_file(&pth).unwrap();
        symlink(installation.at("work/src"), installation.site().join("package")).unwrap();
        assert!(installation.places().directories.contains(&installation.at("work")));
    }

    #[test]
    fn an_installation_that_cannot_be_read_is_not_trusted() {
        let installation = FakeInstallation::new();
        let check = || places(&installation.at("venv/bin/python"), None);
        symlink("/proc/self/cwd", installation.site().join("package")).unwrap();
        assert!(matches!(check(), Err(Distrust::Unresolved(ResolveError::Magic(_)))));
        std::fs::remove_file(installation.site().join("package")).unwrap();
        std::fs::write(installation.site().join("a.pth"), vec![b'x'; 300 * 1024]).unwrap();
        assert!(matches!(check(), Err(Distrust::Unreadable { .. })));
    }
}
