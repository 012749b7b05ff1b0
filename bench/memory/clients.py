#!/usr/bin/python3
"""Peak resident memory (VmHWM) of a daemon whose clients write at full speed, at one setting of --memory.

Loads: `random`, 20 KiB at random block offsets, depth 8; `sectors`, 512 to 20,480 bytes at random sectors over 512 MiB of data, depth 32,
beside the cleaner; `defragment`, `cistern gc --defragment` beside random writes of 512 bytes to 64 KiB. Prints one line for
each load. The bound is the larger of 1.25 times the setting and the setting plus 64 MiB.

usage: /usr/bin/python3 bench/memory/clients.py BIN EMPTY_DIR [MEMORY_MIB [SECONDS]]     (needs python3-libnbd)
"""
import os, random, re, shutil, socket, subprocess, sys, threading, time

import nbd

BIN, DIR = sys.argv[1:3]
MEMORY = int(sys.argv[3]) if len(sys.argv) > 3 else 64
SECONDS = int(sys.argv[4]) if len(sys.argv) > 4 else 20
MIB = 1 << 20
BOUND = max(MEMORY * 5 // 4, MEMORY + 64)
SPAN = 512 * MIB
POOL = [random.randbytes(MIB) for _ in range(8)]


class Daemon:
    def __init__(self, name):
        self.dir = os.path.join(DIR, name)
        os.makedirs(self.dir)
        self.store, self.state = self.dir + "/store/vol", self.dir + "/state"
        os.makedirs(self.dir + "/store")
        self.socket = self.dir + "/sock"
        log = open(self.dir + "/log", "w")
        command = [BIN, "serve", self.store, "--create", "2G", "--journal-size", "256M", "--memory", f"{MEMORY}M",
                   "--state-dir", self.state, "--cache-dir", self.dir + "/cache", "--listen", "unix:" + self.socket]
        self.process = subprocess.Popen(command, stdout=log, stderr=log)
        while not self.answers():
            if self.process.poll() is not None:
                sys.exit("the daemon ended: " + open(self.dir + "/log").read())
            time.sleep(.05)

    def answers(self):
        try:
            with socket.socket(socket.AF_UNIX) as looks:
                looks.connect(self.socket)
            return True
        except OSError:
            return False

    def client(self):
        h = nbd.NBD()
        h.set_strict_mode(0)
        h.connect_uri("nbd+unix:///vol?socket=" + self.socket)
        return h

    def end(self, load):
        text = open(f"/proc/{self.process.pid}/status").read()
        peak = int(re.search(r"VmHWM:\s+(\d+)", text)[1]) // 1024
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.dir)
        print(f"{load:<11} --memory {MEMORY}M: {peak} MiB of {BOUND}{'' if peak <= BOUND else ', TOO MUCH'}", flush=True)


def write(h, depth, sizes, align, goes_on):
    """Random writes of random data, as many at once as `depth`, while `goes_on()`."""
    flying = []
    while goes_on():
        size = random.choice(sizes)
        at = random.randrange((SPAN - size) // align) * align
        begin = random.randrange(MIB - size)
        flying.append(h.aio_pwrite(nbd.Buffer.from_bytearray(bytearray(random.choice(POOL)[begin:begin + size])), at))
        while len(flying) >= depth:
            h.poll(-1)
            flying = [cookie for cookie in flying if not h.aio_command_completed(cookie)]
    while flying:
        h.poll(-1)
        flying = [cookie for cookie in flying if not h.aio_command_completed(cookie)]


def until(seconds):
    end = time.time() + seconds
    return lambda: time.time() < end


def fill(h):
    for at in range(0, SPAN, MIB):
        h.pwrite(POOL[at // MIB % 8], at)
    h.flush()


daemon = Daemon("random")
write(daemon.client(), 8, [20480], 4096, until(SECONDS))
daemon.end("random")

daemon = Daemon("sectors")
client = daemon.client()
fill(client)
write(client, 32, [512, 1536, 4096, 20480], 512, until(SECONDS))
daemon.end("sectors")

daemon = Daemon("defragment")
client = daemon.client()
write(client, 32, [4096], 4096, until(SECONDS))
subprocess.run([BIN, "drain", daemon.store, "--state-dir", daemon.state], check=True, capture_output=True)
running = True
writer = threading.Thread(target=write, args=(client, 32, [512, 1536, 4096, 65536], 512, lambda: running))
writer.start()
subprocess.run([BIN, "gc", daemon.store, "--state-dir", daemon.state, "--defragment", "0-512M"], capture_output=True)
running = False
writer.join()
daemon.end("defragment")
