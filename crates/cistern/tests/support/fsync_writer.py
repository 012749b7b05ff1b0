#!/usr/bin/python3
"""Writes files below DIR and fsyncs each with its directory; then, and only then, prints its name
and SHA-256. Ends at the first error. What was printed must be there after any crash.

    fsync_writer.py DIR SEED
"""
import hashlib, os, random, sys

root, seed = sys.argv[1], sys.argv[2]
draw = random.Random(seed)
number = 0
while True:
    folder = os.path.join(root, f"{seed}-{number // 50}")
    os.makedirs(folder, exist_ok=True)
    name = os.path.join(folder, str(number))
    data = draw.randbytes(draw.choice([100, 4096, 5000, 65536, 300000]))
    try:
        file = os.open(name, os.O_CREAT | os.O_WRONLY | os.O_EXCL)
        half = len(data) // 2
        os.write(file, data[:half])
        os.write(file, data[half:])
        os.fsync(file)
        os.close(file)
        for directory in (folder, root):
            handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
            os.fsync(handle)
            os.close(handle)
        if number % 7 == 0:  # overwritten again and again, so that freed space is used again
            with open(os.path.join(root, f"{seed}-churn"), "wb") as churn:
                churn.write(draw.randbytes(2 << 20))
    except OSError as error:
        sys.exit(f"stopped: {error}")
    print(hashlib.sha256(data).hexdigest(), os.path.relpath(name, root), flush=True)
    number += 1
