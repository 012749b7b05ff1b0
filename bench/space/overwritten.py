#!/usr/bin/python3
"""How much a directory store holds of a volume of 512 MiB that is overwritten where nobody else reads it: at the most, and 30 s after
the last write. `full`: six times, as fast as it goes; `paced`: at 50 MiB/s for so many seconds (600). The bounds are 1.5 times what is live and
10 (15) seconds of writes, and 1.5 times what is live.

usage: /usr/bin/python3 bench/space/overwritten.py BIN EMPTY_DIR full|paced [SECONDS]     (needs python3-libnbd)
"""
import os, subprocess, sys, threading, time

import nbd
BIN, DIR, MODE = sys.argv[1:4]
SECONDS = int(sys.argv[4]) if len(sys.argv) > 4 else 600
MIB = 1 << 20; LIVE = 512 * MIB
os.makedirs(DIR)
env = dict(os.environ, HOME=DIR, XDG_RUNTIME_DIR=DIR, XDG_STATE_HOME=DIR + "/s", XDG_CACHE_HOME=DIR + "/c", XDG_CONFIG_HOME=DIR + "/g")
store = DIR + "/tank"; sock = DIR + "/n.sock"
subprocess.run([BIN, "create", store, "--size", "1G"], env=env, check=True, capture_output=True)
log = open(DIR + "/log", "w")
p = subprocess.Popen([BIN, "serve", store, "--state-dir", DIR + "/state", "--cache-dir", DIR + "/cache", "--cache-size", "64M", "--listen", "unix:" + sock], env=env, stdout=log, stderr=log)
for _ in range(300):
    if "serving" in open(DIR + "/log").read(): break
    time.sleep(.1)
def stored():
    n = 0
    for r, _, fs in os.walk(store):
        for f in fs:
            try: n += os.lstat(os.path.join(r, f)).st_blocks * 512
            except FileNotFoundError: pass
    return n
peak, trace, done = 0, [], False
def watch():
    global peak
    t0 = time.time()
    while not done:
        s = stored(); peak = max(peak, s); trace.append((round(time.time() - t0), s // MIB)); time.sleep(.5)
h = nbd.NBD(); h.connect_uri("nbd+unix:///tank?socket=" + sock)
rnd = [os.urandom(MIB) for _ in range(64)]
def fill(round_, pace=None, until=None):
    t0 = time.time(); n = 0
    for i in range(LIVE // MIB):
        d = bytearray(rnd[(i * 7 + round_) % 64]); d[0:16] = os.urandom(16)
        h.pwrite(d, i * MIB); n += 1
        if pace:
            ahead = n * MIB / pace - (time.time() - t0)
            if ahead > 0: time.sleep(ahead)
        if until and time.time() > until: break
    return time.time() - t0
fill(0); h.flush()
subprocess.run([BIN, "drain", store, "--state-dir", DIR + "/state"], env=env, capture_output=True)
time.sleep(5); base = stored()
threading.Thread(target=watch, daemon=True).start()
t0 = time.time(); rounds = 0
if MODE == "full":
    for r in range(1, 7): fill(r); rounds += 1
else:
    end = time.time() + SECONDS
    while time.time() < end: fill(rounds, 50 * MIB, end); rounds += 1
h.flush(); took = time.time() - t0; rate = rounds * 512 / took if MODE == "full" else 50
last = time.time(); time.sleep(30); after = stored(); done = True
print(f"{MODE}: live 512 MiB, {rounds} rounds in {took:.0f} s ({rate:.0f} MiB/s); stored before {base//MIB}, peak {peak//MIB}, 30 s after the last write {after//MIB} MiB")
print(f"bound of the peak: {768 + (10 if MODE == 'full' else 15) * rate:.0f}; bound at rest: 768")
print("trace", trace[:: max(1, len(trace) // 60)])
st = subprocess.run([BIN, "status", store, "--state-dir", DIR + "/state"], env=env, capture_output=True, text=True).stdout; print(st[-900:])
h.shutdown(); p.terminate(); p.wait(); print(subprocess.run([BIN, "check", store, "--space"], env=env, capture_output=True, text=True).stdout[-1500:])
