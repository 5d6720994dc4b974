//! Which sockets are found, and which of them are covered.

use std::os::unix::net::{UnixDatagram, UnixListener, UnixStream};

use super::*;

fn paths(named: impl IntoIterator<Item = SocketName>) -> BTreeSet<PathBuf> {
    named.into_iter().map(|socket| socket.path).collect()
}

#[test]
fn sockets_are_found_by_path_and_abstract_ones_are_not() {
    let table = b"Num RefCount Protocol Flags Type St Inode Path\n\
        0000: 00000002 00000000 00010000 0001 01 123 /srv/agent socket\n\
        0000: 00000002 00000000 00010000 0001 01 124 @/tmp/.X11-unix/X0\n\
        0000: 00000002 00000000 00010000 0001 01 126 /srv/\xff\n\
        0000: 00000003 00000000 00000000 0001 03 125\n";
    let found: Vec<_> = in_table(table).map(|socket| socket.path).collect();
    let odd = Path::new(OsStr::from_bytes(b"/srv/\xff"));
    assert_eq!(found, [Path::new("/srv/agent socket"), odd]);
}

#[test]
fn sock_diag_lists_each_reachable_socket_with_its_owner() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let _listener = UnixListener::bind(at("listens")).unwrap();
    let _datagrams = UnixDatagram::bind(at("takes datagrams")).unwrap();
    let _connected = UnixStream::connect(at("listens")).unwrap();
    let odd = dir.path().join(OsStr::from_bytes(b"odd\n\xff name"));
    let _odd = UnixListener::bind(&odd).unwrap();
    let _many: Vec<_> = (0..500)
        .map(|number| UnixListener::bind(at(&format!("listens-{number}"))).unwrap())
        .collect();
    let ours = |found: BTreeSet<PathBuf>| -> BTreeSet<PathBuf> {
        found.into_iter().filter(|path| path.starts_with(dir.path())).collect()
    };
    let named = from_sock_diag().unwrap();
    let me = rustix::process::geteuid().as_raw();
    let own = named.iter().filter(|socket| socket.path.starts_with(dir.path()));
    assert!(own.clone().all(|socket| socket.uid == Some(me)), "{:?}", own.collect::<Vec<_>>());
    let mut found = ours(paths(named));
    assert!(found.contains(&at("listens")) && found.contains(&at("takes datagrams")));
    assert!(found.remove(&odd));
    assert_eq!(found.len(), 502);
    let table = std::fs::read("/proc/net/unix").unwrap();
    let in_table: BTreeSet<_> = ours(paths(in_table(&table)));
    assert!(found.is_subset(&in_table));
}

#[test]
fn a_malformed_reply_is_an_error() {
    let mut found = BTreeSet::new();
    for bytes in [&[255, 255, 255, 255, 0, 0][..], &[1, 0, 0, 0], &[0; 16]] {
        assert_eq!(parse_part(bytes, &mut found), Err(Errno::BADMSG));
    }
    assert_eq!(parse_part(&[], &mut found), Ok(SocketDumpPart::More));
    assert!(found.is_empty());
}

/// A directory with sockets, outside the directories that are private in a view.
struct SocketFixture {
    dir: tempfile::TempDir,
    _listeners: Vec<UnixListener>,
    named: BTreeSet<SocketName>,
}

const OTHER: u32 = 4_000_000;

impl SocketFixture {
    fn new(of_others: usize, own: usize) -> Self {
        let dir = tempfile::tempdir_in("/var").or_else(|_| tempfile::tempdir()).unwrap();
        let me = rustix::process::geteuid().as_raw();
        // Names of other users' sockets sort first.
        let kinds = std::iter::repeat_n(("a", OTHER), of_others);
        let kinds = kinds.chain(std::iter::repeat_n(("z", me), own));
        let mut listeners = Vec::new();
        let mut named = BTreeSet::new();
        for (number, (name, uid)) in kinds.enumerate() {
            let path = dir.path().join(format!("{name}{number}"));
            listeners.push(UnixListener::bind(&path).unwrap());
            named.insert(SocketName { path, uid: Some(uid) });
        }
        Self { dir, _listeners: listeners, named }
    }

    /// The covers that the user with this id gets.
    fn choose(&self, shown: &[&Path], me: u32) -> SocketCovers {
        // If the fixture is in `/tmp`, which is private in a view, the directory is shown by its path.
        let whole = [self.dir.path()];
        let in_tmp = self.dir.path().starts_with("/tmp") && shown.is_empty();
        let shown = if in_tmp { &whole[..] } else { shown };
        let (hidden, opened) = (BTreeMap::new(), BTreeMap::new());
        choose(
            self.named.clone(),
            &VisibleFiles { shown, named: &[], opened: &opened, hidden: &hidden },
            me,
        )
    }
}

#[test]
fn many_sockets_of_another_user_do_not_use_up_the_limit() {
    let fixture = SocketFixture::new(SOCKETS_MAX + 50, 10);
    let me = rustix::process::geteuid().as_raw();
    let found = fixture.choose(&[], me);
    let own = found
        .covered
        .iter()
        .filter(|path| path.file_name().is_some_and(|name| name.as_bytes().starts_with(b"z")));
    assert_eq!(own.count(), 10);
    assert_eq!((found.covered.len(), found.uncovered), (SOCKETS_MAX, 60), "{found:?}");
}

#[test]
fn a_directory_of_another_user_is_covered_as_a_whole_unless_something_in_it_is_shown() {
    let fixture = SocketFixture::new(SOCKETS_MAX + 50, 0);
    if fixture.dir.path().starts_with("/tmp") || !rustix::process::geteuid().is_root() {
        // The directory must belong to another user and must not be private in a view.
        return;
    }
    std::os::unix::fs::chown(fixture.dir.path(), Some(OTHER), None).unwrap();
    let found = fixture.choose(&[], 0);
    assert_eq!((found.covered.len(), found.uncovered), (SOCKETS_MAX + 1, 0));
    assert!(found.covered.contains(&fixture.dir.path().to_owned()));
    let inside = fixture.dir.path().join("work");
    let found = fixture.choose(&[&inside], 0);
    assert_eq!((found.covered.len(), found.uncovered), (SOCKETS_MAX, 50));
}

#[test]
fn a_path_that_is_no_longer_a_socket_is_not_covered() {
    let fixture = SocketFixture::new(1, 0);
    let name = fixture.named.first().unwrap().path.clone();
    std::fs::remove_file(&name).unwrap();
    std::os::unix::fs::symlink("/usr/bin/env", &name).unwrap();
    assert_eq!(fixture.choose(&[], 0), SocketCovers::default());
    std::fs::remove_file(&name).unwrap();
    std::fs::create_dir(&name).unwrap();
    assert_eq!(fixture.choose(&[], 0), SocketCovers::default());
}

#[test]
fn a_path_that_is_not_utf8_is_counted_and_not_covered() {
    let mut fixture = SocketFixture::new(1, 0);
    let path = fixture.dir.path().join(OsStr::from_bytes(b"\xff"));
    let _odd = UnixListener::bind(&path).unwrap();
    fixture.named.insert(SocketName { path, uid: Some(OTHER) });
    let found = fixture.choose(&[], rustix::process::geteuid().as_raw());
    assert_eq!((found.covered.len(), found.uncovered), (1, 1), "{found:?}");
    assert!(found.covered.iter().all(|path| path.to_str().is_some()));
}

#[test]
fn a_socket_in_a_hidden_or_private_directory_needs_no_cover() {
    let hidden = BTreeMap::from([(PathBuf::from("/h/u/.state"), PathKind::Directory)]);
    let work = Path::new("/tmp/work");
    let opened = BTreeMap::from([(PathBuf::from("/h/u"), BTreeMap::new())]);
    let visible = VisibleFiles {
        shown: &[work, Path::new("/")],
        named: &[],
        opened: &opened,
        hidden: &hidden,
    };
    for (path, exposed) in [
        ("/h/u/.state/r/keeper.sock", false),
        ("/h/u/.state-of-things/a.sock", true),
        ("/run/docker.sock", false),
        ("/running/a.sock", true),
        ("/tmp/other/a.sock", false),
        ("/tmp/work/a.sock", true),
        ("/srv/a.sock", true),
    ] {
        assert_eq!(visible.exposes(Path::new(path)), exposed, "{path}");
    }
    assert!(visible.can_cover(Path::new("/srv")));
    for kept in ["/tmp", "/tmp/work", "/tmp/work/inside", "/h", "/h/u"] {
        assert!(!visible.can_cover(Path::new(kept)), "{kept}");
    }
}

#[test]
fn sockets_in_a_directory_that_the_policy_names_are_not_covered() {
    let (hidden, opened) = (BTreeMap::new(), BTreeMap::new());
    let named = [Path::new("/tmp/gates")];
    let visible = VisibleFiles { shown: &named, named: &named, opened: &opened, hidden: &hidden };
    assert!(!visible.exposes(Path::new("/tmp/gates/one")));
    assert!(visible.exposes(Path::new("/tmp/gates/deeper/one")));
    assert!(visible.exposes(Path::new("/srv/other")));
}
