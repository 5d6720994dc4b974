//! Tests each operation with symlinks on every part of its path, and with hostile trees.

use std::ffi::OsStr;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::time::{Duration, Instant};

use super::*;

/// A root directory with `in/file`, a directory outside of it, and symlinks at several positions that lead
/// outside.
struct LinkFixture {
    _dir: tempfile::TempDir,
    root: PathBuf,
    outside: PathBuf,
}

impl LinkFixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let base = dir.path().canonicalize().unwrap();
        let (root, outside) = (base.join("root"), base.join("outside"));
        std::fs::create_dir_all(root.join("in")).unwrap();
        std::fs::create_dir_all(outside.join("sub")).unwrap();
        std::fs::write(root.join("in/file"), "inside").unwrap();
        std::fs::write(outside.join("secret"), "secret").unwrap();
        std::fs::write(outside.join("sub/secret"), "secret").unwrap();
        symlink(&outside, root.join("link")).unwrap();
        symlink("../outside", root.join("up")).unwrap();
        symlink(outside.join("secret"), root.join("in/leaf")).unwrap();
        symlink("in", root.join("inner")).unwrap();
        symlink("/proc/self/root", root.join("magic")).unwrap();
        Self { _dir: dir, root, outside }
    }

    fn open(&self) -> Directory {
        Directory::trusted(&self.root).unwrap()
    }

    /// Checks that nothing outside was changed.
    fn check_outside(&self) {
        let names = |path: &Path| {
            let mut names: Vec<_> =
                std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(&self.outside), ["secret", "sub"]);
        assert_eq!(names(&self.outside.join("sub")), ["secret"]);
        for file in ["secret", "sub/secret"] {
            let about = self.outside.join(file).metadata().unwrap();
            assert_eq!((about.nlink(), about.len(), about.mode() & 0o777), (1, 6, 0o644));
        }
        assert_eq!(self.outside.metadata().unwrap().mode() & 0o777, 0o755);
    }
}

fn limits() -> CopyLimits {
    let until = Instant::now() + Duration::from_secs(60);
    let (skip, omit) = (SkipRule::LeaveOut, |_: &OsStr| false);
    CopyLimits { entries: 10_000, bytes: 1 << 30, depth: 32, until, skip, omit }
}

#[test]
fn no_operation_goes_through_a_link() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    // Symlinks as the first, middle and last part of a path; absolute, relative, magic; and `..`.
    for above in ["link", "up", "magic", "inner", "..", "in/..", "in/../..", "/", "link/sub"] {
        let path = Path::new(above);
        let at = |name: &str| path.join(name);
        assert!(root.directory(at("sub")).is_err(), "{above}");
        assert!(root.make_directory(at("new"), 0o700).is_err(), "{above}");
        assert!(root.create_directory(at("new"), 0o700).is_err(), "{above}");
        assert!(root.file(at("secret")).is_err(), "{above}");
        assert!(root.create_file(at("new"), 0o600).is_err(), "{above}");
        assert!(!matches!(root.look(at("secret")), Ok(Some(_))), "{above}");
        assert!(root.read_link(at("secret")).is_err(), "{above}");
        assert!(root.symlink(Path::new("x"), at("new")).is_err(), "{above}");
        assert!(root.hard_link("in/file", &root, at("new")).is_err(), "{above}");
        assert!(root.hard_link(at("secret"), &root, "new").is_err(), "{above}");
        assert!(root.rename("in/file", &root, at("new")).is_err(), "{above}");
        assert!(root.rename(at("secret"), &root, "new").is_err(), "{above}");
        assert!(root.remove_file(at("secret")).is_err(), "{above}");
        assert!(root.remove_directory(at("sub")).is_err(), "{above}");
        let removed = root.remove_tree(at("sub"));
        assert!(removed.is_err() || !path.join("sub").exists(), "{above}");
        fixture.check_outside();
    }
    for link in ["link", "up", "magic", "inner", "in/leaf"] {
        assert!(root.directory(link).is_err(), "{link}");
        assert!(root.file(link).is_err(), "{link}");
        assert!(root.create_file(link, 0o600).is_err(), "{link}");
        assert!(root.create_directory(link, 0o700).is_err(), "{link}");
        assert!(root.make_directory(link, 0o700).is_err(), "{link}");
        assert!(root.rename("in/file", &root, link).is_err(), "{link}");
        assert_eq!(kind(&root.look(link).unwrap().unwrap()), FileType::Symlink, "{link}");
    }
    fixture.check_outside();
    assert_eq!(io::read_to_string(root.file("in/file").unwrap()).unwrap(), "inside");
}

#[test]
fn a_recorded_path_with_a_link_on_it_is_refused() {
    let fixture = LinkFixture::new();
    assert!(Directory::recorded(&fixture.root.join("in")).is_ok());
    for link in ["link", "link/sub", "inner", "up/sub"] {
        assert!(Directory::recorded(&fixture.root.join(link)).is_err(), "{link}");
    }
    assert!(Directory::recorded(Path::new("in")).is_err(), "it is relative");
}

#[test]
fn links_inside_are_followed_only_where_that_is_asked_for() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    let open = |path: &str, links| {
        open_beneath(&root, Path::new(path), READ, Mode::empty(), links).is_ok()
    };
    assert!(open("inner/file", Links::Inside) && !open("inner/file", Links::Refuse));
    assert!(!open("link/secret", Links::Inside) && !open("up/secret", Links::Inside));
    assert!(!open("magic/etc/passwd", Links::Inside));
}

#[test]
fn links_themselves_can_be_moved_linked_and_removed() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    root.rename("link", &root, "in/moved").unwrap();
    assert_eq!(root.read_link("in/moved").unwrap(), fixture.outside);
    root.hard_link("in/moved", &root, "again").unwrap();
    assert_eq!(kind(&root.look("again").unwrap().unwrap()), FileType::Symlink);
    root.remove_file("again").unwrap();
    root.remove_tree("in").unwrap();
    assert!(root.look("in").unwrap().is_none());
    root.remove_tree("in").unwrap();
    fixture.check_outside();
}

#[test]
fn pipes_sockets_and_directories_are_no_files_and_do_not_block() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    let pipe = fixture.root.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    std::os::unix::net::UnixListener::bind(fixture.root.join("socket")).unwrap();
    for other in ["pipe", "socket", "in"] {
        assert!(root.file(other).is_err(), "{other}");
    }
}

#[test]
fn a_tree_is_removed_whatever_its_depth_and_modes_are() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    root.create_directory("deep", 0o700).unwrap();
    let mut here = root.directory("deep").unwrap();
    for _ in 0..1000 {
        here = here.create_directory("d", 0o700).unwrap();
    }
    drop(here);
    symlink(&fixture.outside, fixture.root.join("deep/d/link")).unwrap();
    for (name, mode) in [("none", 0), ("read", 0o500), ("write", 0o300)] {
        let path = fixture.root.join("deep").join(name);
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), "").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
    }
    root.remove_tree("deep").unwrap();
    let mut names = root.names().unwrap();
    names.sort();
    assert_eq!(names, ["in", "inner", "link", "magic", "up"]);
    fixture.check_outside();
}

#[test]
fn a_copy_has_files_links_modes_and_names_and_no_special_bits() {
    let fixture = LinkFixture::new();
    let from = fixture.root.join("in");
    std::fs::create_dir_all(from.join("a/b")).unwrap();
    std::fs::write(from.join("a/b/c"), "text").unwrap();
    std::fs::hard_link(from.join("a/b/c"), from.join("again")).unwrap();
    std::fs::hard_link(fixture.outside.join("secret"), from.join("hard")).unwrap();
    std::os::unix::net::UnixListener::bind(from.join("socket")).unwrap();
    let pipe = from.join("pipe");
    rustix::fs::mknodat(CWD, &pipe, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    std::fs::write(from.join("suid"), "").unwrap();
    let set = |path: &str, mode| {
        std::fs::set_permissions(from.join(path), PermissionsExt::from_mode(mode)).unwrap();
    };
    set("suid", 0o6755);
    set("a/b", 0o2750);
    set("a", 0o500);
    let to = fixture.root.join("to");
    let target = fixture.open().create_directory("to", 0o700).unwrap();
    let left = Directory::trusted(&from).unwrap().copy_tree(&target, limits()).unwrap();
    assert!(left.named.is_empty() && left.others == 0, "{left:?}");
    let about = |path: &str| to.join(path).symlink_metadata().unwrap();
    assert_eq!(std::fs::read_to_string(to.join("again")).unwrap(), "text");
    assert_eq!(about("again").nlink(), 2);
    assert_eq!(about("again").ino(), about("a/b/c").ino());
    assert_eq!(about("a").mode() & 0o7777, 0o500);
    assert_eq!(about("a/b").mode() & 0o7777, 0o750);
    assert_eq!(about("suid").mode() & 0o7777, 0o755);
    assert_eq!(to.join("leaf").read_link().unwrap(), fixture.outside.join("secret"));
    assert!(!to.join("socket").exists() && !to.join("pipe").exists());
    // A hard link to a file outside becomes a separate file in the copy.
    assert_eq!(about("hard").nlink(), 1);
    let outside = fixture.outside.join("secret").metadata().unwrap();
    assert_ne!(about("hard").ino(), outside.ino());
    assert_eq!(about("file").mtime_nsec(), from.join("file").metadata().unwrap().mtime_nsec());
    set("a", 0o700);
    std::fs::remove_file(from.join("hard")).unwrap();
    fixture.check_outside();
}

#[test]
fn a_file_with_holes_takes_no_more_than_its_data() {
    let fixture = LinkFixture::new();
    let file = std::fs::File::create(fixture.root.join("in/holes")).unwrap();
    let at = |at| std::os::unix::fs::FileExt::write_all_at(&file, b"data", at).unwrap();
    at(0);
    at(40 << 30);
    let target = fixture.open().create_directory("to", 0o700).unwrap();
    let from = fixture.open().directory("in").unwrap();
    let limits = CopyLimits { bytes: 1 << 20, ..limits() };
    from.copy_tree(&target, limits).unwrap();
    let copy = fixture.root.join("to/holes").metadata().unwrap();
    assert_eq!(copy.len(), (40 << 30) + 4);
    assert!(copy.blocks() * 512 < 1 << 20);
}

#[test]
fn a_copy_stops_at_each_limit() {
    let fixture = LinkFixture::new();
    let in_ = fixture.root.join("in");
    for name in ["a/b/c", "d"] {
        std::fs::create_dir_all(in_.join(name)).unwrap();
    }
    std::fs::write(in_.join("large"), vec![7; 100_000]).unwrap();
    let from = fixture.open().directory("in").unwrap();
    let copy = |name: &str, limits| {
        let to = fixture.open().create_directory(name, 0o700).unwrap();
        from.copy_tree(&to, limits)
    };
    let few = CopyLimits { entries: 3, ..limits() };
    assert!(matches!(copy("few", few), Err(CopyError::TooLarge)));
    let small = CopyLimits { bytes: 50_000, ..limits() };
    assert!(matches!(copy("small", small), Err(CopyError::TooLarge)));
    let flat = CopyLimits { depth: 2, ..limits() };
    assert!(matches!(copy("flat", flat), Err(CopyError::TooDeep { .. })));
    let late = CopyLimits { until: Instant::now(), ..limits() };
    assert!(matches!(copy("late", late), Err(CopyError::TooSlow)));
    assert!(copy("all", limits()).is_ok());
}

#[test]
fn entries_that_the_session_may_not_read_are_left_out_and_named_also_for_root() {
    let fixture = LinkFixture::new();
    let in_ = fixture.root.join("in");
    std::fs::create_dir_all(in_.join("closed/sub")).unwrap();
    std::fs::write(in_.join("theirs"), "secret").unwrap();
    for path in ["theirs", "closed"] {
        std::fs::set_permissions(in_.join(path), PermissionsExt::from_mode(0o000)).unwrap();
    }
    let target = fixture.open().create_directory("to", 0o700).unwrap();
    let left = fixture.open().directory("in").unwrap().copy_tree(&target, limits()).unwrap();
    let mut named: Vec<_> = left.named.into_iter().map(|(path, _)| path).collect();
    named.sort();
    assert_eq!(named, [Path::new("closed"), Path::new("theirs")]);
    assert!(!fixture.root.join("to/theirs").exists() && !fixture.root.join("to/closed").exists());
    std::fs::set_permissions(in_.join("closed"), PermissionsExt::from_mode(0o700)).unwrap();
}

/// Directories and files of the source are swapped with symlinks as fast as possible while it is copied.
#[test]
fn nothing_outside_is_copied_while_entries_are_swapped_for_links() {
    let fixture = LinkFixture::new();
    let in_ = fixture.root.join("in");
    for number in 0..50 {
        let directory = in_.join(format!("d{number}"));
        std::fs::create_dir_all(directory.join("sub")).unwrap();
        std::fs::write(directory.join("sub/file"), "inside").unwrap();
        std::fs::write(directory.join("file"), "inside").unwrap();
        symlink(&fixture.outside, directory.join("away")).unwrap();
        symlink(fixture.outside.join("secret"), directory.join("leaf")).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let exchange = |one: PathBuf, other: PathBuf| {
                let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
            };
            while !stop.load(ordering) {
                for number in 0..50 {
                    let directory = in_.join(format!("d{number}"));
                    exchange(directory.join("sub"), directory.join("away"));
                    exchange(directory.join("file"), directory.join("leaf"));
                }
            }
        });
        for round in 0..10 {
            let name = format!("to{round}");
            let target = fixture.open().create_directory(&name, 0o700).unwrap();
            fixture.open().directory("in").unwrap().copy_tree(&target, limits()).unwrap();
            check_copy(&fixture.root.join(name));
        }
        stop.store(true, ordering);
    });
    fixture.check_outside();
}

fn check_copy(path: &Path) {
    for entry in std::fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let about = entry.metadata().unwrap();
        assert_ne!(entry.file_name(), "secret");
        if about.is_dir() {
            check_copy(&entry.path());
        } else if about.is_file() {
            assert_eq!(std::fs::read_to_string(entry.path()).unwrap(), "inside");
        }
    }
}

#[test]
fn a_tree_that_is_deep_and_wide_is_removed_whole() {
    let fixture = LinkFixture::new();
    let mut deep = fixture.root.join("tree");
    deep.extend(["d"; 70]);
    std::fs::create_dir_all(&deep).unwrap();
    // More directories than `WAITING_MAX`, at the depth at which they are moved to the top.
    let wide = fixture.root.join("tree").join(PathBuf::from_iter(["d"; 63]));
    for number in 0..1100 {
        std::fs::create_dir_all(wide.join(number.to_string()).join("inner")).unwrap();
    }
    fixture.open().remove_tree(Path::new("tree")).unwrap();
    let left = std::fs::read_dir(&fixture.root).unwrap().flatten().map(|entry| entry.file_name());
    let left: Vec<_> = left.filter(|name| name != "in").collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains("deep")), "{left:?}");
    assert!(!fixture.root.join("tree").exists());
    fixture.check_outside();
}

#[test]
fn directories_that_can_be_recreated_are_left_out_by_name_and_by_content() {
    let fixture = LinkFixture::new();
    let in_ = fixture.root.join("in");
    let signature = "Signature: 8a477f597d28d172789f06886806bc55\n# more";
    for (path, content) in [
        (".venv/lib/module.py", ""),
        ("own/pyvenv.cfg", "home = /usr"),
        ("web/node_modules/a/index.js", ""),
        ("pkg/__pycache__/a.pyc", ""),
        ("target/CACHEDIR.TAG", signature),
        ("target/debug/program", ""),
        ("false/CACHEDIR.TAG", "Signature: another"),
        ("venv/no_mark", ""),
        ("src/node_modules.py", ""),
    ] {
        let path = in_.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    std::fs::create_dir(in_.join("planted")).unwrap();
    symlink(fixture.outside.join("secret"), in_.join("planted/pyvenv.cfg")).unwrap();
    let copy = |name: &str, skip| {
        let to = fixture.open().create_directory(name, 0o700).unwrap();
        let left = fixture.open().directory("in").unwrap();
        let left = left.copy_tree(&to, CopyLimits { skip, ..limits() }).unwrap();
        let mut skipped = left.skipped;
        skipped.sort_by(|one, other| one.path.cmp(&other.path));
        skipped
    };
    let skipped = copy("some", SkipRule::LeaveOut);
    let found: Vec<_> = skipped.iter().map(|one| (one.path.to_str().unwrap(), one.why)).collect();
    let expected = [
        (".venv", Ignorable::Environment),
        ("own", Ignorable::Environment),
        ("pkg/__pycache__", Ignorable::Cache),
        ("target", Ignorable::Cache),
        ("web/node_modules", Ignorable::Packages),
    ];
    assert_eq!(found, expected);
    let to = fixture.root.join("some");
    for kept in ["false/CACHEDIR.TAG", "venv/no_mark", "src/node_modules.py", "planted"] {
        assert!(to.join(kept).exists(), "{kept}");
    }
    assert!(!to.join("own").exists() && !to.join(".venv").exists());
    assert_eq!(copy("all", SkipRule::CopyAll), []);
    assert!(fixture.root.join("all/.venv/lib/module.py").exists());
}

#[test]
fn caches_make_room_for_environments_among_the_named() {
    let fixture = LinkFixture::new();
    for number in 0..70 {
        std::fs::create_dir_all(fixture.root.join(format!("in/{number}/__pycache__"))).unwrap();
    }
    std::fs::create_dir_all(fixture.root.join("in/z/.venv")).unwrap();
    let to = fixture.open().create_directory("to", 0o700).unwrap();
    let left = fixture.open().directory("in").unwrap().copy_tree(&to, limits()).unwrap();
    assert_eq!((left.skipped.len(), left.skipped_more), (64, 7));
    assert!(left.skipped.iter().any(|one| one.path == Path::new("z/.venv")));
}

fn meter(counts: LinkedFiles) -> TreeMeter {
    TreeMeter::new(Instant::now() + Duration::from_secs(60), 1_000_000, counts)
}

#[test]
fn the_measured_size_equals_the_space_that_removal_frees() {
    let fixture = LinkFixture::new();
    let tree = fixture.root.join("tree");
    std::fs::create_dir_all(tree.join("sub")).unwrap();
    std::fs::write(tree.join("sub/large"), vec![7; 300_000]).unwrap();
    std::fs::write(tree.join("one"), vec![7; 50_000]).unwrap();
    std::fs::hard_link(tree.join("one"), tree.join("sub/two")).unwrap();
    std::fs::hard_link(fixture.outside.join("secret"), tree.join("theirs")).unwrap();
    symlink(&fixture.outside, tree.join("away")).unwrap();
    std::fs::write(tree.join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "odd").unwrap();
    let root = fixture.open();
    let measure = |counts| root.measure_tree("tree", &mut meter(counts)).unwrap();
    let (held, freed) = (measure(LinkedFiles::AtFirstName), measure(LinkedFiles::AtLastName));
    let theirs = fixture.outside.join("secret").metadata().unwrap().blocks() * 512;
    assert_eq!(held.bytes, freed.bytes + theirs, "one more name of a file gives nothing back");
    assert!(freed.bytes >= 350_000 && freed.bytes < 600_000, "{freed:?}");
    let removed = root.remove_tree("tree").unwrap();
    assert_eq!((removed.bytes, removed.entries), (freed.bytes, freed.entries));
    assert_eq!(measure(LinkedFiles::AtFirstName), TreeSize::default());
    fixture.check_outside();
}

#[test]
fn trees_of_ten_thousand_levels_are_measured_and_removed() {
    let fixture = LinkFixture::new();
    let root = fixture.open();
    let mut here = root.create_directory("deep", 0o700).unwrap();
    for level in 0..10_000 {
        if level % 1000 == 0 {
            // A second subdirectory, so that closed levels are reopened.
            here.create_directory("other", 0o700).unwrap().create_directory("e", 0o700).unwrap();
        }
        here = here.create_directory("d", 0o700).unwrap();
    }
    here.create_file("end", 0o600).unwrap();
    drop(here);
    let found = root.measure_tree("deep", &mut meter(LinkedFiles::AtFirstName)).unwrap();
    assert_eq!((found.entries, found.whole), (10_022, Whole::Yes));
    let removed = root.remove_tree("deep").unwrap();
    assert_eq!((removed.entries, removed.bytes), (found.entries, found.bytes));
}

#[test]
fn a_measurement_stops_at_its_bounds_and_says_so() {
    let fixture = LinkFixture::new();
    for number in 0..50 {
        std::fs::write(fixture.root.join(format!("in/{number}")), "").unwrap();
    }
    let mut few =
        TreeMeter::new(Instant::now() + Duration::from_secs(60), 10, LinkedFiles::AtFirstName);
    let found = fixture.open().measure_tree("in", &mut few).unwrap();
    assert!(found.entries < 15 && found.whole == Whole::No, "{found:?}");
    let mut late = TreeMeter::new(Instant::now(), 1000, LinkedFiles::AtFirstName);
    assert_eq!(fixture.open().measure_tree("in", &mut late).unwrap().whole, Whole::No);
}

/// Directories are swapped with symlinks to the outside while they are measured and then removed.
#[test]
fn nothing_outside_is_counted_or_removed_while_directories_are_swapped_for_links() {
    let fixture = LinkFixture::new();
    std::fs::write(fixture.outside.join("large"), vec![7; 8 << 20]).unwrap();
    let tree = fixture.root.join("tree");
    for number in 0..50 {
        std::fs::create_dir_all(tree.join(format!("d{number}/sub"))).unwrap();
        symlink(&fixture.outside, tree.join(format!("d{number}/away"))).unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    let ordering = std::sync::atomic::Ordering::Relaxed;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(ordering) {
                for number in 0..50 {
                    let directory = tree.join(format!("d{number}"));
                    let (one, other) = (directory.join("sub"), directory.join("away"));
                    let _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE);
                }
            }
        });
        let measured: Vec<_> = (0..50)
            .map(|_| fixture.open().measure_tree("tree", &mut meter(LinkedFiles::AtFirstName)))
            .collect();
        let removed = fixture.open().remove_tree("tree");
        stop.store(true, ordering);
        assert!(measured.into_iter().all(|found| found.unwrap().bytes < 8 << 20));
        removed.unwrap();
    });
    assert_eq!(fixture.outside.join("large").metadata().unwrap().len(), 8 << 20);
    std::fs::remove_file(fixture.outside.join("large")).unwrap();
    fixture.check_outside();
}
