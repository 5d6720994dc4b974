//! What stays on the disk: package environments that nobody uses, and what a crash leaves.

use windlass_client::protocol::disk::{DiskKind, PruneRequest};

use super::*;

#[tokio::test]
async fn contract_77_prune_removes_unnamed_environments_that_no_session_uses() {
    let index = Index::start(&[("tinyseven", "answer = 7")]);
    let Some(node) = node_with(&index).await else { return };
    let client = node.client().await.unwrap();
    let named = make(&client, &request(Some("data"), &["tinyseven"])).await;
    let unnamed = make(&client, &request(None, &["tinyseven"])).await;
    let used = make(&client, &request(None, &["tinyseven==1.0"])).await;
    let session = session_with(&client, &used).await;
    let packages = |use_: &windlass_client::protocol::disk::DiskUse| {
        let share = use_.kinds.iter().find(|share| share.kind == DiskKind::Packages);
        share.map(|share| share.entries).unwrap()
    };
    let before = packages(&client.disk_use().await.unwrap());
    assert!(before > 10, "{before}");
    let removed = async |dry_run, older_than_s| {
        let pruned = client.prune(&PruneRequest { dry_run, older_than_s }).await.unwrap();
        let of_packages = pruned.removed.into_iter().filter(|item| item.kind == DiskKind::Packages);
        of_packages.map(|item| (item.name, item.bytes > 0)).collect::<Vec<_>>()
    };
    assert_eq!(removed(false, Some(3600)).await, []);
    let expected = vec![(format!("packages/{}", unnamed.name), true)];
    assert_eq!(removed(true, None).await, expected);
    assert!(Path::new(&unnamed.directory).exists());
    assert_eq!(removed(false, None).await, expected);
    assert!(!Path::new(&unnamed.directory).exists());
    let gone = client.package_environment(&unnamed.name).await.unwrap_err();
    assert_eq!(gone.api_code(), Some(ErrorCode::NotFound), "{gone}");
    assert!(packages(&client.disk_use().await.unwrap()) < before);
    assert_eq!(run_ok(&client, &session.id, "import tinyseven; tinyseven.answer").await, "7\n");
    assert!(Path::new(&named.directory).exists());
}

#[tokio::test]
async fn contract_77_a_start_of_the_node_removes_what_a_crash_left_of_environments() {
    let mut node = TestNode::start(PROGRAM).await.unwrap();
    let packages = node.dirs().state.join("packages");
    node.kill9();
    let left = ["without/build/venv", ".removed-7-data/build/venv"].map(|name| packages.join(name));
    let later = packages.join("later");
    for directory in left.iter().chain([&later]) {
        std::fs::create_dir_all(directory).unwrap();
    }
    std::fs::write(later.join("environment.json"), r#"{"version": 99}"#).unwrap();
    node.restart().await.unwrap();
    // It is moved away before the node serves; the files are removed beside that.
    assert!(!packages.join("without").exists());
    assert!(later.join("environment.json").exists());
    let client = node.client().await.unwrap();
    let list = client.environments(<_>::default()).await.unwrap();
    assert_eq!(list.packages, []);
}

#[tokio::test]
async fn contract_77_uv_builds_an_environment_with_its_lock() {
    let index = Index::start(&[("tinyone", "answer = 42")]);
    let Some(node) = node_with_uv(&index).await else { return };
    let client = node.client().await.unwrap();
    let built = make(&client, &request(Some("quick"), &["tinyone"])).await;
    assert_eq!(built.state, PackageEnvironmentState::Ready, "{built:?}");
    let session = session_with(&client, &built).await;
    assert_eq!(run_ok(&client, &session.id, "import tinyone; tinyone.answer").await, "42\n");
    let lock = client.package_environment(&built.name).await.unwrap().lock.unwrap();
    assert!(lock.starts_with("tinyone==1.0"), "{lock}");
}
