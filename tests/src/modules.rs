//! No module of a crate imports, directly or through others, a module that imports it. Code then reads in one direction,
//! and each layer can be understood without those above it. What a module only passes on (`pub use`) is imported from where it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use crate::pages::root;

/// A module by its path from the root of its crate, which is empty.
pub(crate) type Module = Vec<String>;

/// The modules of a crate with what each of them imports. Tests are left out, and so is `main.rs`, which nothing imports.
pub(crate) fn imports(source: &Path) -> BTreeMap<Module, BTreeSet<Module>> {
    let mut files = BTreeMap::new();
    read(source, &Module::new(), &mut files);
    let modules: BTreeSet<Module> = files.keys().cloned().collect();
    let mut passed_on = BTreeMap::new();
    for (module, code) in &mut files {
        for path in take_passed_on(module, code, &modules) {
            let Some(name) = path.last() else { continue };
            // Here it is used, too.
            if uses(code, name) {
                code.extend(["use crate::", &path.join("::"), ";\n"]);
            }
            let here = [module.as_slice(), std::slice::from_ref(name)].concat();
            // A function may have the name of its module.
            if !modules.contains(&here) {
                passed_on.insert(here, path);
            }
        }
    }
    let imports_of = |module: &Module, code: &String| {
        let paths = paths(module, code, &modules).into_iter().map(|path| origin(path, &passed_on));
        let imported = paths.map(|path| containing(&path, &modules)).filter(|other| other != module);
        (module.clone(), imported.collect())
    };
    files.iter().map(|(module, code)| imports_of(module, code)).collect()
}

/// Removes every `pub use` from the code of a module, and returns their paths.
fn take_passed_on(module: &Module, code: &mut String, modules: &BTreeSet<Module>) -> Vec<Vec<String>> {
    let (mut found, mut rest) = (Vec::new(), String::new());
    for statement in code.split_inclusive(';') {
        let at = ["pub use ", "pub(crate) use ", "pub(super) use "].iter().find_map(|it| statement.rfind(it));
        let (before, passed_on) = statement.split_at(at.unwrap_or(statement.len()));
        found.extend(paths(module, passed_on, modules));
        rest.push_str(before);
    }
    *code = rest;
    found
}

/// Whether the name stands for itself somewhere: not as part of a path, a method or a declaration.
fn uses(code: &str, name: &str) -> bool {
    let is_part = |one: char| one.is_alphanumeric() || one == '_';
    code.match_indices(name).any(|(at, _)| {
        let (before, after) = (&code[..at], &code[at + name.len()..]);
        let is_other = before.ends_with(['.', ':']) || before.ends_with("fn ") || before.ends_with(is_part);
        !is_other && !after.starts_with(is_part)
    })
}

/// Where the item is that modules pass on under this path.
fn origin(path: Vec<String>, passed_on: &BTreeMap<Vec<String>, Vec<String>>) -> Vec<String> {
    let named = (1..=path.len()).find_map(|length| Some((length, passed_on.get(&path[..length])?)));
    match named {
        Some((length, target)) => origin([target.as_slice(), &path[length..]].concat(), passed_on),
        None => path,
    }
}

/// The files of a folder as modules, with their code.
fn read(folder: &Path, parent: &Module, files: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap().flatten() {
        let path = entry.path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        // Programs of a library are crates of their own.
        if name.ends_with("tests") || name == "simulation" || name == "bin" {
            continue;
        }
        if path.is_dir() {
            read(&path, &[parent.as_slice(), &[name]].concat(), files);
        } else if name == "mod" || (name == "lib" && parent.is_empty()) {
            files.insert(parent.clone(), code(&path));
        } else if name != "main" {
            files.insert([parent.as_slice(), &[name]].concat(), code(&path));
        }
    }
}

/// A file without its comments and without the tests at its end.
fn code(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap();
    let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    code.split_inclusive('\n').filter(|line| !line.trim_start().starts_with("//")).collect()
}

/// All paths from the root of the crate in the code of a module: after `crate::` and `super::`, and to its own children.
fn paths(module: &Module, code: &str, modules: &BTreeSet<Module>) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    for (position, _) in code.match_indices("::") {
        let name = identifier_before(&code[..position]);
        let before = code[..position - name.len()].chars().next_back();
        if before.is_some_and(|one| ":.$".contains(one)) {
            continue;
        }
        let rest = &code[position + 2..];
        let child = [module.as_slice(), &[name.to_owned()]].concat();
        match name {
            "crate" => expand(&[], rest, &mut found),
            "self" => expand(module, rest, &mut found),
            "super" => expand(&module[..module.len().saturating_sub(1)], rest, &mut found),
            _ if modules.contains(&child) => expand(&child, rest, &mut found),
            _ => continue,
        };
    }
    found
}

fn identifier_before(code: &str) -> &str {
    let start = code.rfind(|one: char| !one.is_alphanumeric() && one != '_').map_or(0, |at| at + 1);
    &code[start..]
}

/// `a::{b, c::D}` after `prefix`; returns what follows.
fn expand<'a>(prefix: &[String], rest: &'a str, found: &mut Vec<Vec<String>>) -> &'a str {
    if let Some(mut list) = rest.strip_prefix('{') {
        loop {
            list = expand(prefix, list.trim_start(), found).trim_start();
            match list.strip_prefix(',') {
                Some(more) => list = more,
                None => return list.trim_start_matches('}'),
            }
        }
    }
    let end = rest.find(|one: char| !one.is_alphanumeric() && one != '_').unwrap_or(rest.len());
    let (name, rest) = rest.split_at(end);
    let path = match name {
        "super" => prefix[..prefix.len().saturating_sub(1)].to_vec(),
        "" | "self" => prefix.to_vec(),
        _ => [prefix, &[name.to_owned()]].concat(),
    };
    match rest.strip_prefix("::") {
        Some(rest) => expand(&path, rest, found),
        None => {
            found.push(path);
            rest
        }
    }
}

/// The module that has the item of this path.
fn containing(path: &[String], modules: &BTreeSet<Module>) -> Module {
    let prefixes = (0..=path.len()).rev().map(|length| path[..length].to_vec());
    prefixes.into_iter().find(|prefix| modules.contains(prefix)).unwrap_or_default()
}

/// Modules that import each other, if there are any.
fn cycle(imports: &BTreeMap<Module, BTreeSet<Module>>) -> Option<Vec<String>> {
    let mut left = imports.clone();
    loop {
        let done: BTreeSet<Module> = left
            .iter()
            .filter(|(_, imported)| imported.is_empty())
            .map(|(module, _)| module.clone())
            .collect();
        if done.is_empty() {
            break;
        }
        left.retain(|module, _| !done.contains(module));
        for imported in left.values_mut() {
            imported.retain(|other| !done.contains(other));
        }
    }
    // Each of the rest imports another one of the rest, so that this comes back to where it has been.
    let mut walked: Vec<&Module> = vec![left.keys().next()?];
    loop {
        let next = left[walked[walked.len() - 1]].first()?;
        if let Some(start) = walked.iter().position(|module| *module == next) {
            return Some(walked[start..].iter().chain([&next]).map(|module| module.join("::")).collect());
        }
        walked.push(next);
    }
}

#[test]
fn no_modules_import_each_other() {
    let crates = fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap().path());
    let cycles = crates.chain([root().join("xtask"), root().join("tests")]).filter_map(|folder| {
        let cycle = cycle(&imports(&folder.join("src")))?.join(" → ");
        Some(format!("{}: {cycle}", folder.display()))
    });
    assert_eq!(cycles.collect::<Vec<_>>(), [""; 0]);
}

#[test]
fn what_a_module_passes_on_is_imported_from_where_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, code: &str| fs::write(folder.path().join(name), code).unwrap();
    write(
        "lib.rs",
        "mod a;\nmod b;\npub use a::{One, two};\npub use b::Three;\nfn f(_: Three) { x.two() }\n",
    );
    write("a.rs", "pub struct One;\n");
    write("b.rs", "use crate::One;\n");
    let module = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Module>();
    let found = imports(folder.path());
    assert_eq!(found[&module(&["b"])], BTreeSet::from([module(&["a"])]));
    assert_eq!(found[&module(&[])], BTreeSet::from([module(&["b"])]), "it passes on what is in `a`");
}

#[test]
fn imports_are_found_however_they_are_written() {
    let modules = ["", "a", "a::b", "a::b::c", "d", "e"];
    let path = |text: &str| text.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect();
    let modules: BTreeSet<Module> = modules.into_iter().map(path).collect();
    let code =
        "use crate::{d::{X, Y}, a};\nuse super::z;\nfn f() { c::run(); crate::e::f::<T>(); other::d::x() }";
    let found = paths(&path("a::b"), code, &modules);
    let found: BTreeSet<String> = found.iter().map(|path| containing(path, &modules).join("::")).collect();
    assert_eq!(found.into_iter().collect::<Vec<_>>(), ["a", "a::b::c", "d", "e"]);
}

#[test]
fn a_cycle_is_shown() {
    let module = |name: &str| vec![name.to_owned()];
    let of = |names: &[&str]| names.iter().map(|name| module(name)).collect::<BTreeSet<_>>();
    let mut imports = BTreeMap::from([
        (module("top"), of(&["middle"])),
        (module("middle"), of(&["bottom"])),
        (module("bottom"), of(&[])),
    ]);
    assert_eq!(cycle(&imports), None);
    imports.insert(module("bottom"), of(&["middle"]));
    assert_eq!(cycle(&imports).unwrap(), ["bottom", "middle", "bottom"]);
}
