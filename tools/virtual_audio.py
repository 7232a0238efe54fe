#!/usr/bin/env python3
"""A microphone and a loudspeaker made of software, for live tests on machines without sound (Linux).

  virtual_audio.py install          the packages it needs, through the system's package manager
  virtual_audio.py check            are they there? (exit code)
  virtual_audio.py start DIR        a private PulseAudio in DIR (nothing when it runs already)
  virtual_audio.py kill DIR         ends the server as a crash would; `start` brings it back
  virtual_audio.py stop DIR         ends the server and removes DIR
  virtual_audio.py env DIR          NAME=VALUE lines: what programs need to see these devices
  virtual_audio.py say DIR WAV      speaks WAV into the microphone, and waits
  virtual_audio.py record DIR SECONDS WAV   what the loudspeaker plays

ALSA programs see the loudspeaker as `default` output, the microphone as `default` input, and the
loudspeaker's sound as the input `speaker_monitor`. No other sound server is touched. OXILINE_AUDIO_RATE
sets the rate of both (48000).
"""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

MARK = ".oxiline-virtual-audio"
PROGRAMS = ["pulseaudio", "pactl", "paplay", "parec"]
MANAGERS = [
    ("apt-get", [["update", "-qq"], ["install", "-y", "-qq", "--no-install-recommends",
                                     "pulseaudio", "pulseaudio-utils", "libasound2-plugins"]]),
    ("dnf", [["install", "-y", "-q", "pulseaudio", "pulseaudio-utils", "alsa-plugins-pulseaudio"]]),
    ("pacman", [["-Sy", "--noconfirm", "--needed", "pulseaudio", "alsa-plugins"]]),
    ("apk", [["add", "--quiet", "pulseaudio", "pulseaudio-utils", "alsa-plugins-pulse"]]),
]


def fail(text):
    sys.exit(f"virtual_audio.py: {text}")


def plugin():
    """ALSA's way to PulseAudio."""
    for root in ("/usr/lib", "/usr/lib64"):
        for found in pathlib.Path(root).glob("**/libasound_module_pcm_pulse.so"):
            return found
    return None


def missing():
    lacks = [name for name in PROGRAMS if not shutil.which(name)]
    return lacks if plugin() else [*lacks, "ALSA's pulse plugin"]


def install():
    if not missing():
        return
    found = [(name, steps) for name, steps in MANAGERS if shutil.which(name)]
    if not found:
        fail(f"missing: {', '.join(missing())}; install PulseAudio and ALSA's pulse plugin")
    manager, steps = found[0]
    before = [] if os.geteuid() == 0 else ["sudo", "-n"]
    for step in steps:
        done = subprocess.run([*before, manager, *step], env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
                              stdin=subprocess.DEVNULL, check=False)
        # Old package lists may still do.
        if done.returncode != 0 and step[0] != "update":
            fail(f"`{' '.join([*before, manager, *step])}` failed; run it by hand as an administrator")
    if missing():
        fail(f"still missing after the installation: {', '.join(missing())}")


class Server:
    """One server, all of it in one folder."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder).absolute()
        self.socket = self.folder / "socket"
        self.pid_file = self.folder / "pid"

    def env(self):
        return {
            "PULSE_SERVER": f"unix:{self.socket}",
            "PULSE_COOKIE": str(self.folder / "cookie"),
            "ALSA_CONFIG_PATH": str(self.folder / "asound.conf"),
        }

    def run(self, *words, **more):
        return subprocess.run(words, env={**os.environ, **self.env()}, stdin=subprocess.DEVNULL, check=False, **more)

    def pid(self):
        """The server's process, if it is really ours."""
        try:
            pid = int(self.pid_file.read_text())
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()
            return pid if b"pulseaudio" in words and str(self.folder).encode() in words else None
        except (OSError, ValueError):
            return None

    def answers(self):
        try:
            quiet = subprocess.DEVNULL
            return self.pid() is not None and self.run("pactl", "info", stdout=quiet, stderr=quiet, timeout=5).returncode == 0
        except subprocess.TimeoutExpired:
            return False

    def configure(self):
        rate = int(os.environ.get("OXILINE_AUDIO_RATE", "48000"))
        # Without norewinds a null sink works in steps of two seconds.
        sink = f"load-module module-null-sink rate={rate} norewinds=1"
        script = [
            ".fail",
            f"load-module module-native-protocol-unix auth-anonymous=1 socket={self.socket}",
            f"{sink} sink_name=speaker channels=2",
            f"{sink} sink_name=mic_feed channels=1",
            "load-module module-remap-source source_name=mic master=mic_feed.monitor channels=1",
            "set-default-sink speaker",
            "set-default-source mic",
        ]
        (self.folder / "server.pa").write_text("\n".join(script) + "\n")
        lines = ["</usr/share/alsa/alsa.conf>"]
        named = {"default": None, "speaker": "speaker", "speaker_monitor": "speaker.monitor", "mic": "mic"}
        for name, device in named.items():
            target = f' device "{device}"' if device else ""
            hint = f'hint {{ show on description "{name}" }}'
            lines.append(f'pcm.!{name} {{ type pulse server "unix:{self.socket}"{target} {hint} }}')
        lines.append(f'ctl.!default {{ type pulse server "unix:{self.socket}" }}')
        (self.folder / "asound.conf").write_text("\n".join(lines) + "\n")

    def start(self):
        if missing():
            fail(f"missing: {', '.join(missing())}; run `virtual_audio.py install`")
        if self.answers():
            return
        mark = self.folder / MARK
        if self.folder.is_dir() and any(self.folder.iterdir()) and not mark.exists():
            fail(f"{self.folder} is not empty and not made by this program; name a new folder")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        mark.touch()
        self.socket.unlink(missing_ok=True)
        self.configure()
        # A home of its own: no other server's state is read or written.
        own = {**os.environ, "HOME": str(self.folder), "PULSE_RUNTIME_PATH": str(self.folder),
               "PULSE_STATE_PATH": str(self.folder), "PULSE_COOKIE": str(self.folder / "cookie")}
        for name in ("PULSE_SERVER", "DISPLAY", "DBUS_SESSION_BUS_ADDRESS"):
            own.pop(name, None)
        words = ["pulseaudio", "-n", "--daemonize=no", "--use-pid-file=no", "--exit-idle-time=-1", "--realtime=no",
                 "--high-priority=yes", "--log-target=stderr", "-F", str(self.folder / "server.pa")]
        with open(self.folder / "log", "ab") as log:
            server = subprocess.Popen(words, env=own, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                      start_new_session=True)
        self.pid_file.write_text(str(server.pid))
        for _ in range(200):
            if self.answers():
                return
            if server.poll() is not None:
                break
            time.sleep(0.1)
        sys.stderr.write((self.folder / "log").read_text(errors="replace"))
        fail("the sound server did not start; what it said is above")

    def end(self, how):
        pid = self.pid()
        if pid is None:
            return
        os.kill(pid, how)
        for _ in range(50):
            if self.pid() is None:
                return
            time.sleep(0.1)
        os.kill(pid, signal.SIGKILL)

    def stop(self):
        self.end(signal.SIGTERM)
        # Only what this program has made is removed.
        if (self.folder / MARK).exists():
            shutil.rmtree(self.folder)


def main(words):
    match words:
        case ["install"]:
            install()
        case ["check"]:
            sys.exit(1 if missing() else 0)
        case ["start", folder]:
            Server(folder).start()
        case ["kill", folder]:
            Server(folder).end(signal.SIGKILL)
        case ["stop", folder]:
            Server(folder).stop()
        case ["env", folder]:
            for name, value in Server(folder).env().items():
                print(f"{name}={value}")
        case ["say", folder, wav]:
            sys.exit(Server(folder).run("paplay", "--device=mic_feed", wav).returncode)
        case ["record", folder, seconds, wav]:
            rate = os.environ.get("OXILINE_AUDIO_RATE", "48000")
            command = ["parec", "--device=speaker.monitor", f"--rate={rate}", "--channels=2", "--file-format=wav",
                       "--latency-msec=20", wav]
            server = Server(folder)
            with subprocess.Popen(command, env={**os.environ, **server.env()}, stdin=subprocess.DEVNULL) as parec:
                time.sleep(float(seconds))
                parec.terminate()
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
