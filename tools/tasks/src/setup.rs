//! What must be installed before everything can be built.

use std::process::Command;

use crate::shell::{Failed, run, say, succeeds};

/// ALSA's headers, which the feature `audio-devices` needs on Linux.
pub fn audio_headers() -> Result<(), Failed> {
    // The build asks pkg-config too, so what it does not find does not help.
    let found = || succeeds(Command::new("pkg-config").args(["--exists", "alsa"]));
    if !cfg!(target_os = "linux") || found() {
        return Ok(());
    }
    let managers: [(&str, &[&[&str]]); 4] = [
        ("apt-get", &[&["update", "-qq"], &["install", "-y", "-qq", "pkg-config", "libasound2-dev"]]),
        ("dnf", &[&["install", "-y", "-q", "pkgconf-pkg-config", "alsa-lib-devel"]]),
        ("pacman", &[&["-Sy", "--noconfirm", "--needed", "pkgconf", "alsa-lib"]]),
        ("apk", &[&["add", "--quiet", "pkgconf", "alsa-lib-dev"]]),
    ];
    let present = managers.iter().find(|(name, _)| succeeds(Command::new(name).arg("--version")));
    let Some((manager, steps)) = present else {
        return Err(Failed::new(
            "ALSA's headers are missing (alsa.pc); install your system's ALSA development package",
        ));
    };
    let root = succeeds(Command::new("sh").args(["-c", "test \"$(id -u)\" = 0"]));
    let sudo = !root && succeeds(Command::new("sudo").args(["-n", "true"]));
    let words = |step: &[&str]| format!("{}{manager} {}", if root { "" } else { "sudo " }, step.join(" "));
    if !root && !sudo {
        let all: Vec<String> = steps.iter().map(|s| words(s)).collect();
        return Err(Failed::new(format!("ALSA's headers are missing; install them with: {}", all.join(" && "))));
    }
    for step in *steps {
        say("install", &format!("ALSA's headers, for the feature audio-devices: {}", words(step)));
        let mut command = if sudo { Command::new("sudo") } else { Command::new(manager) };
        if sudo {
            command.args(["-n", manager]);
        }
        let done = run(command.env("DEBIAN_FRONTEND", "noninteractive").args(*step));
        // Package lists that can't be renewed may still be good enough to install from.
        if step.first() != Some(&"update") {
            done?;
        }
    }
    if found() { Ok(()) } else { Err(Failed::new("ALSA's headers were installed but pkg-config does not find alsa")) }
}

/// The private sound server of the live tests; false where there is none for this system.
pub fn virtual_audio() -> Result<bool, Failed> {
    if !cfg!(target_os = "linux") {
        say("left out", "live audio tests: their sound server is for Linux");
        return Ok(false);
    }
    let tool = |verb| {
        let mut command = Command::new("python3");
        command.args(["tools/virtual_audio.py", verb]);
        command
    };
    if !succeeds(&mut tool("check")) {
        say("install", "a sound server for the live audio tests");
        run(&mut tool("install"))?;
    }
    Ok(true)
}
