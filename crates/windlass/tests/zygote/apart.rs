//! What two sessions of one zygote must not share.

use std::collections::BTreeSet;

use windlass_client::protocol::api::{CloseQuery, CreateSession};
use windlass_client::protocol::event::StartedBy;
use windlass_testkit::{TestNode, outside_of_tmp, python_with_matplotlib, run_ok};

use crate::{PROGRAM, WAYS, make_venv, node, node_of, packages, ready, session, started_by};

/// The output of a piece of code in each of three sessions with this start method.
async fn in_three(code: &str) -> Vec<BTreeSet<String>> {
    let mut all = Vec::new();
    for (way, by) in WAYS {
        let node = node(way).await;
        let client = node.client().await.unwrap();
        let mut printed = BTreeSet::new();
        for _ in 0..3 {
            let id = session(&node, &client, by).await;
            printed.insert(run_ok(&client, &id, code).await);
        }
        all.push(printed);
    }
    all
}

async fn differs(code: &str) {
    for printed in in_three(code).await {
        assert_eq!(printed.len(), 3, "two sessions have this in common: {printed:?}");
    }
}

async fn is_alike(code: &str) {
    for printed in in_three(code).await {
        assert_eq!(printed.len(), 1, "sessions differ in this: {printed:?}");
    }
}

#[tokio::test]
async fn random_numbers_differ() {
    differs("import random; print(random.random(), random.getrandbits(64))").await;
}

/// Also if a preloaded module has already drawn numbers, and one cached number is left.
#[tokio::test]
async fn numbers_of_numpy_differ() {
    let place = outside_of_tmp(env!("CARGO_TARGET_TMPDIR"));
    let venv = place.path().join("venv");
    make_venv(&venv);
    let numpy = python_with_matplotlib(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let libraries = packages(numpy.parent().unwrap().parent().unwrap());
    std::fs::write(packages(&venv).join("numpy.pth"), libraries.to_str().unwrap()).unwrap();
    let drawn = "import numpy.random\nnumpy.random.normal()\n";
    std::fs::write(packages(&venv).join("drawn.py"), drawn).unwrap();
    let interpreter = venv.join("bin/python");
    let entry = serde_json::json!({"interpreter": interpreter, "preload": ["drawn"]});
    let node = node_of(place.path(), &entry).await;
    let client = node.client().await.unwrap();
    let create = CreateSession {
        interpreter: Some(interpreter.to_str().unwrap().to_owned()),
        ..TestNode::create()
    };
    let mut printed: [BTreeSet<String>; 2] = Default::default();
    for _ in 0..3 {
        ready(&node).await;
        let id = client.create_session(&create).await.unwrap().session.id;
        assert_eq!(run_ok(&client, &id, "import sys; 'drawn' in sys.modules").await, "True\n");
        for (code, printed) in ["normal()", "random()"].iter().zip(&mut printed) {
            let code = format!("import numpy; print(numpy.random.{code})");
            printed.insert(run_ok(&client, &id, &code).await);
        }
        assert_eq!(started_by(&client, &id).await, StartedBy::Pool);
    }
    assert!(printed.iter().all(|printed| printed.len() == 3), "in common: {printed:?}");
}

#[tokio::test]
async fn values_from_the_system_random_source_differ() {
    differs("import os, secrets, uuid; print(os.urandom(8), secrets.token_hex(8), uuid.uuid4())")
        .await;
    differs("import uuid; print(uuid.uuid1().hex)").await;
    differs("import ssl; print(ssl.RAND_bytes(8))").await;
    differs("import multiprocessing; print(bytes(multiprocessing.current_process().authkey))")
        .await;
}

#[tokio::test]
async fn names_of_temporary_files_differ() {
    differs("import tempfile; print([next(tempfile._get_candidate_names()) for _ in range(3)])")
        .await;
}

/// The seed of string hashes is fixed for the life of an interpreter: sessions of one zygote share it, and
/// the documentation says so. A client that wants another seed requests one, and gets a new interpreter.
#[tokio::test]
async fn the_seed_of_hashes_is_the_zygotes_and_not_that_of_another() {
    is_alike("print(hash('a'))").await;
    let mut seeds = BTreeSet::new();
    for _ in 0..2 {
        let node = node("zygote").await;
        let client = node.client().await.unwrap();
        let id = session(&node, &client, StartedBy::Zygote).await;
        seeds.insert(run_ok(&client, &id, "print(hash('a'))").await);
        let mut create = TestNode::create();
        create.env.insert("PYTHONHASHSEED".into(), "7".into());
        let own = client.create_session(&create).await.unwrap().session.id;
        let own_hash = run_ok(&client, &own, "print(hash('a'))").await;
        assert_eq!(started_by(&client, &own).await, StartedBy::Exec);
        assert!(!seeds.contains(&own_hash));
    }
    assert_eq!(seeds.len(), 2);
}

/// The same open descriptors as in a session with a new interpreter, and no others.
#[tokio::test]
async fn no_other_descriptors_are_open() {
    let code = "import os\n\
        def what(fd):\n    try: return os.readlink('/proc/self/fd/%d' % fd).split(':')[0]\n    \
        except OSError: return None\n\
        print(sorted((fd, w) for fd in range(1024) if (w := what(fd)) and w != '/proc'))";
    let by_exec = {
        let node = TestNode::start(PROGRAM).await.unwrap();
        let client = node.client().await.unwrap();
        let id = session(&node, &client, StartedBy::Exec).await;
        run_ok(&client, &id, code).await
    };
    assert!(by_exec.contains("(900, 'socket')"), "{by_exec}");
    for printed in in_three(code).await {
        assert_eq!(printed, BTreeSet::from([by_exec.clone()]));
    }
}

#[tokio::test]
async fn caches_and_variables_of_one_session_are_not_in_another() {
    for (way, by) in WAYS {
        let node = node(way).await;
        let client = node.client().await.unwrap();
        let one = session(&node, &client, by).await;
        let leave = "import os, sys, re, linecache, functools, builtins\n\
            secret = 'left here'\nbuiltins.secret = secret\nos.environ['SECRET'] = secret\n\
            sys.path.insert(0, secret)\nsys.modules['secret'] = secret\nre.compile(secret)\n\
            re.secret = secret\nopen('/tmp/secret', 'w').write(secret)";
        run_ok(&client, &one, leave).await;
        let look = "import os, sys, re, builtins\n\
            print([hasattr(builtins, 'secret'), 'SECRET' in os.environ, 'left here' in sys.path,\
            'secret' in sys.modules, hasattr(re, 'secret'), os.path.exists('/tmp/secret'),\
            any('left here' in str(key) for key in re._cache)])";
        let two = session(&node, &client, by).await;
        let found = run_ok(&client, &two, look).await;
        assert_eq!(found, "[False, False, False, False, False, False, False]\n", "{way}");
        // A later session does not see the state of an ended one either.
        client.close_session(&one, CloseQuery::default()).await.unwrap();
        let three = session(&node, &client, by).await;
        assert_eq!(run_ok(&client, &three, look).await, found, "{way}");
    }
}
