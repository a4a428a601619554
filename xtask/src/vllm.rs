//! `test-vllm`: the tests of the Python package, with a real vLLM engine on the CPU.
//!
//! Engine and model are set up once, in a folder outside the tree (see [`shell::cache_folder`]); the wheel is built and
//! installed anew, by an ordinary installer, in an environment on top of theirs.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::shell::{self, Result};
use crate::wheel::{self, Profile};

/// Sets up, builds, installs, tests; `arguments` go to pytest.
pub(crate) fn test(arguments: &[String]) -> Result {
    let cache = shell::cache_folder()?;
    let setup = shell::root().join("python/tests/setup/setup.sh");
    shell::say("set up the engine (once: about 1 GB is fetched)");
    let printed = shell::output(Command::new("bash").arg(&setup).arg(&cache))?;
    let engine = PathBuf::from(String::from_utf8_lossy(&printed.stdout).trim());
    let wheel = wheel::wheel(Profile::Dev, &engine.join("bin/maturin").display().to_string())?;
    let python = environment(&engine, &wheel)?;
    lint(&engine, &python)?;
    let mut command = Command::new(&python);
    command.args(["-m", "pytest", "--durations=20", "-v"]).args(arguments);
    command.current_dir(shell::root().join("python/tests"));
    command.env("UMBP_TEST_MODEL", engine.join("tiny-model")).env_remove("PYTHONPATH");
    shell::run(&mut command)
}

/// Style and types.
fn lint(engine: &Path, python: &Path) -> Result {
    let folder = shell::root().join("python");
    let tool = |name: &str| {
        let mut command = Command::new(engine.join("bin").join(name));
        command.current_dir(&folder);
        command
    };
    shell::run(tool("ruff").args(["check", "--quiet", "."]))?;
    shell::run(tool("ruff").args(["format", "--quiet", "--check", "."]))?;
    shell::run(tool("mypy").arg("--python-executable").arg(python).args(["umbp", "tests"]))
}

/// An environment that sees the engine's packages and has the wheel of its own; answers its interpreter.
fn environment(engine: &Path, wheel: &Path) -> Result<PathBuf> {
    let own = shell::target()?.join("test-vllm/venv");
    let python = own.join("bin/python");
    let uv = engine.join("bin/uv");
    shell::run(
        Command::new(&uv).args(["venv", "--quiet", "--clear", "--python"]).arg(engine.join("bin/python")).arg(&own),
    )?;
    let packages = site_packages(&python)?;
    let beneath = site_packages(&engine.join("bin/python"))?;
    std::fs::write(packages.join("engine.pth"), format!("{}\n", beneath.display()))
        .map_err(|e| format!("write engine.pth in {}: {e}", packages.display()))?;
    let mut install = Command::new(&uv);
    install.args(["pip", "install", "--quiet", "--no-deps", "--offline", "--reinstall", "--python"]);
    shell::run(install.arg(&python).arg(wheel))?;
    Ok(python)
}

fn site_packages(python: &Path) -> Result<PathBuf> {
    let print = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let output = shell::output(Command::new(python).args(["-c", print]))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()))
}
