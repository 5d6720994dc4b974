//! Placeholders are made, shared, taken over and removed. Files that a user put there stay.

use windlass_confine::ProtectedEntry;

use super::*;

struct Scene {
    _dir: tempfile::TempDir,
    work: PathBuf,
    records: PathBuf,
    stock: PathBuf,
}

impl Scene {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let work = root.join("work");
        std::fs::create_dir(&work).unwrap();
        Self { _dir: dir, work, records: root.join("records"), stock: root.join("stock") }
    }

    fn node(&self) -> Placeholders {
        Placeholders::new(self.records.clone(), self.stock.clone())
    }

    /// The result of a survey: these names, each missing or not.
    fn look(&self) -> ProtectedNames {
        let all = [
            (".git", Placeholder::Directory),
            ("AGENTS.md", Placeholder::Directory),
            ("CLAUDE.md", Placeholder::Directory),
            (".bashrc", Placeholder::Link),
        ];
        let protected = all.into_iter().map(|(name, placeholder)| {
            let path = self.work.join(name);
            let found = match path.symlink_metadata() {
                Ok(_) => ProtectedEntry::Link,
                Err(_) => ProtectedEntry::Missing(placeholder),
            };
            (path, found)
        });
        ProtectedNames { protected: protected.collect(), unheld: None }
    }

    fn acquire(&self, node: &Placeholders, session: &str) -> ProtectedNames {
        node.acquire(&id(session), || self.look())
    }

    fn left(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.work).unwrap().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }
}

fn id(session: &str) -> SessionId {
    SessionId::parse(session).unwrap()
}

const ALL: [&str; 4] = [".bashrc", ".git", "AGENTS.md", "CLAUDE.md"];

#[test]
fn placeholders_stay_until_the_last_session_ends() {
    let scene = Scene::new();
    let node = scene.node();
    assert_eq!(scene.acquire(&node, "one").unheld, None);
    assert_eq!(scene.left(), ALL);
    let kind = |name: &str| scene.work.join(name).symlink_metadata().unwrap().file_type();
    assert!(kind(".git").is_dir() && kind("AGENTS.md").is_dir() && kind(".bashrc").is_symlink());
    assert!(!scene.work.join(".bashrc").exists(), "its readers find nothing");
    scene.acquire(&node, "two");
    node.release(&id("one"));
    assert_eq!(scene.left(), ALL);
    node.release(&id("two"));
    node.release(&id("two"));
    assert!(scene.left().is_empty());
    assert_eq!(std::fs::read_dir(&scene.records).unwrap().count(), 0);
}

#[test]
fn a_later_node_removes_the_placeholders_of_sessions_that_are_gone() {
    let scene = Scene::new();
    let node = scene.node();
    scene.acquire(&node, "lives");
    scene.acquire(&node, "gone");
    drop(node);
    let node = scene.node();
    node.take_over(|session| session.as_str() == "lives");
    assert_eq!(scene.left(), ALL);
    assert!(!scene.records.join("gone").exists());
    node.release(&id("lives"));
    assert!(scene.left().is_empty());
}

#[test]
fn a_node_that_died_while_it_made_them_leaves_nothing() {
    let scene = Scene::new();
    let node = scene.node();
    scene.acquire(&node, "one");
    drop(node);
    // As if the node died while it wrote the second line.
    let record = scene.records.join("one");
    let text = std::fs::read_to_string(&record).unwrap();
    let first = text.lines().next().unwrap();
    std::fs::write(&record, format!("{first}\n[{{\"path\"")).unwrap();
    scene.node().take_over(|_| false);
    assert!(scene.left().is_empty());
}

#[test]
fn files_that_the_user_has_put_there_stay() {
    let scene = Scene::new();
    let node = scene.node();
    scene.acquire(&node, "one");
    let at = |name: &str| scene.work.join(name);
    std::fs::write(at(".git/HEAD"), "ref").unwrap();
    std::fs::remove_dir(at("AGENTS.md")).unwrap();
    std::fs::write(at("AGENTS.md"), "mine").unwrap();
    // Moved instead of removed, so that the new directory cannot get the same inode number.
    std::fs::rename(at("CLAUDE.md"), scene.work.parent().unwrap().join("moved")).unwrap();
    std::fs::create_dir(at("CLAUDE.md")).unwrap();
    std::fs::remove_file(at(".bashrc")).unwrap();
    std::os::unix::fs::symlink("elsewhere", at(".bashrc")).unwrap();
    node.release(&id("one"));
    assert_eq!(scene.left(), ALL);
    assert_eq!(std::fs::read_to_string(at("AGENTS.md")).unwrap(), "mine");
}

#[test]
fn the_names_say_why_a_placeholder_cannot_be_made() {
    let scene = Scene::new();
    let node = scene.node();
    let look = || {
        let mut names = scene.look();
        let nowhere = PathBuf::from("/proc/AGENTS.md");
        names.protected.insert(nowhere, ProtectedEntry::Missing(Placeholder::Directory));
        names
    };
    let names = node.acquire(&id("one"), look);
    assert!(names.unheld.unwrap().contains("/proc/AGENTS.md"));
    assert!(names.protected.is_empty(), "none of them is held");
    assert!(scene.left().is_empty(), "the placeholders that were made are removed again");
    node.release(&id("one"));
}

#[test]
fn a_copy_of_the_workspace_has_no_placeholders() {
    let scene = Scene::new();
    let node = scene.node();
    scene.acquire(&node, "one");
    let copy = scene.work.parent().unwrap().join("copy");
    std::fs::create_dir_all(copy.join(".git")).unwrap();
    std::fs::write(copy.join("AGENTS.md"), "of the session's own").unwrap();
    std::os::unix::fs::symlink(NOWHERE, copy.join(".bashrc")).unwrap();
    node.leave_out(&id("one"), &scene.work, &beneath::Directory::trusted(&copy).unwrap());
    let left: Vec<_> = std::fs::read_dir(&copy).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn directories_of_the_stock_become_placeholders() {
    let scene = Scene::new();
    let node = scene.node();
    assert!(node.are_few());
    scene.acquire(&node, "one");
    node.stock_up();
    assert!(!node.are_few());
    let stocked = || std::fs::read_dir(&scene.stock).unwrap().count();
    let full = stocked();
    node.release(&id("one"));
    scene.acquire(&node, "two");
    assert_eq!(scene.left(), ALL);
    assert_eq!(stocked(), full - 3);
    node.release(&id("two"));
    assert!(scene.left().is_empty());
    assert_eq!(stocked(), full - 3, "none comes back");
    node.stock_up();
    assert_eq!(stocked(), full);
    scene.acquire(&node, "three");
    // A missing stock is not an error.
    std::fs::remove_dir_all(&scene.stock).unwrap();
    node.release(&id("three"));
    scene.acquire(&node, "four");
    assert_eq!(scene.left(), ALL);
}
