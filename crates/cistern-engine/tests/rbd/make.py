"""Makes the images of which README.md tells, in the pool rbd of the cluster of ceph.conf."""
import rados, rbd

cluster = rados.Rados(conffile='ceph.conf'); cluster.connect()
io = cluster.open_ioctx('rbd')


def noise(tag, n):
    out, x = bytearray(), tag
    while len(out) < n:
        x = (x * 6364136223846793005 + 1442695040888963407) % (1 << 64)
        out += x.to_bytes(8, 'little')
    return bytes(out[:n])


def make(name, size, order, **striping):
    rbd.RBD().create(io, name, size, order=order, old_format=False, features=61, **striping)
    return rbd.Image(io, name)


im = make('plain', 200000, 14)          # no multiple of 512
im.write(noise(1, 10000), 1000)       # unaligned
im.write(noise(2, 4096), 65536)
im.write(noise(3, 777), 199223)       # up to the last byte
im.create_snap('monday')
im.write(noise(4, 3000), 5000)        # over data
im.discard(65536, 2048)             # a part of what was written
im.write(noise(5, 512), 100000)
im.resize(300001)                   # grows
im.write(noise(6, 5000), 295001)
im.create_snap('tuesday')
im.resize(70000)                    # shrinks
im.resize(150000)                   # and grows: what was there is zero
im.discard(0, 16384)                # a whole object
im.write(noise(7, 100), 149900)
im.create_snap('wednesday')
im.close()
im = make('striped', 1 << 20, 16, stripe_unit=4096, stripe_count=4)
im.write(noise(8, 9000), 3000)
im.write(noise(9, 5000), 300000)
im.create_snap('one')
im.write(noise(10, 6000), 10000)
im.discard(300000, 8192)
im.create_snap('two')
im.close()
