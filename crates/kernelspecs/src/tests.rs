//! Kernelspecs in real directories.

use std::ffi::OsString;

use super::*;

fn write_spec(data: &Path, name: &str, json: &str) {
    let directory = data.join("kernels").join(name);
    fs::create_dir_all(&directory).unwrap();
    fs::write(directory.join(KERNEL_FILE), json).unwrap();
}

fn paths_of(variables: &[(&str, &Path)]) -> KernelPaths {
    KernelPaths::from_variables(|name| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| OsString::from(value))
    })
}

#[test]
fn the_first_directory_with_a_name_wins() {
    let root = tempfile::tempdir().unwrap();
    let (first, venv, user) =
        (root.path().join("a"), root.path().join("venv"), root.path().join("user"));
    write_spec(&first, "Odd", r#"{"argv": ["/bin/sh", "{connection_file}"], "language": "one"}"#);
    write_spec(&venv.join("share/jupyter"), "odd", r#"{"argv": ["x"], "language": "two"}"#);
    write_spec(&venv.join("share/jupyter"), "other", r#"{"argv": ["no-such-program-here"]}"#);
    write_spec(&user, "third", r#"{"argv": ["sh"], "interrupt_mode": "message"}"#);
    write_spec(&user, "bad", "{");
    write_spec(&user, "empty", r#"{"argv": []}"#);
    write_spec(&user, "bad name", r#"{"argv": ["sh"]}"#);
    let paths = paths_of(&[
        ("JUPYTER_PATH", &first),
        ("VIRTUAL_ENV", &venv),
        ("JUPYTER_DATA_DIR", &user),
        ("PATH", Path::new("/usr/bin:/bin")),
    ]);
    let (found, unusable) = find_all(&paths);
    let shown: Vec<_> =
        found.iter().map(|k| (k.spec.name.as_str(), k.spec.language.as_str())).collect();
    // The machine may have kernels of its own.
    assert!(shown.contains(&("odd", "one")) && !shown.contains(&("odd", "two")), "{shown:?}");
    let missing: Vec<_> = found.iter().flat_map(|kernel| kernel.missing.clone()).collect();
    assert!(missing.contains(&"program no-such-program-here".to_owned()), "{missing:?}");
    let third = find(&paths, "Third").unwrap();
    assert_eq!(third.spec.interrupt_mode, InterruptMode::Message);
    assert_eq!(third.missing, Vec::<String>::new());
    assert_eq!(unusable.len(), 2, "{unusable:?}");
}

#[test]
fn relative_and_repeated_directories_are_left_out() {
    let paths = paths_of(&[
        ("JUPYTER_PATH", Path::new("relative:/a/jupyter:/usr/share/jupyter")),
        ("HOME", Path::new("/people/u")),
        ("VIRTUAL_ENV", Path::new("/v")),
    ]);
    let directories: Vec<_> = paths.kernel_directories().collect();
    let expected = [
        "/a/jupyter/kernels",
        "/usr/share/jupyter/kernels",
        "/v/share/jupyter/kernels",
        "/people/u/.local/share/jupyter/kernels",
        "/usr/local/share/jupyter/kernels",
    ];
    assert_eq!(directories, expected.map(PathBuf::from));
}

#[test]
fn a_plain_python_is_that_of_the_environment() {
    let root = tempfile::tempdir().unwrap();
    let data = root.path().join("share/jupyter");
    write_spec(
        &data,
        "python3",
        r#"{"argv": ["python3", "-f", "{connection_file}", "{resource_dir}"]}"#,
    );
    let file = data.join("kernels/python3").join(KERNEL_FILE);
    let spec = KernelSpec::read(&file).unwrap();
    assert_eq!(spec.command("/c")[..3], ["python3", "-f", "/c"]);
    fs::create_dir(root.path().join("bin")).unwrap();
    fs::write(root.path().join("bin/python3"), "").unwrap();
    let command = spec.command("/c");
    assert_eq!(command[0], root.path().join("bin/python3").to_string_lossy());
    assert_eq!(command[3], data.join("kernels/python3").to_string_lossy());
}

#[test]
fn variables_in_values_are_expanded_once() {
    let variable = |name: &str| (name == "A").then(|| "${A}".to_owned());
    for (text, filled) in [
        ("plain", "plain"),
        ("x${A}y", "x${A}y"),
        ("${NONE}:${A}", "${NONE}:${A}"),
        ("${A", "${A"),
        ("$A", "$A"),
    ] {
        assert_eq!(expanded(text, variable), filled, "{text}");
    }
    let home = |name: &str| (name == "HOME").then(|| "/h".to_owned());
    assert_eq!(expanded("${HOME}/x:${HOME}", home), "/h/x:/h");
}

#[test]
fn a_huge_file_is_refused() {
    let root = tempfile::tempdir().unwrap();
    write_spec(root.path(), "huge", &" ".repeat(300 * 1024));
    let file = root.path().join("kernels/huge").join(KERNEL_FILE);
    assert!(matches!(KernelSpec::read(&file), Err(SpecError::TooLong { .. })));
}
