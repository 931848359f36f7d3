from bench.buffer import path
from bench.buffer.setting import open_server

with open_server() as s:
    print(path.compare(s)["vs_raw_redis"])
