# Makes a container: PORT ACCOUNT KEY CONTAINER
import base64, hashlib, hmac, sys, time, urllib.request

port, account, key, container = sys.argv[1:]
date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())
headers = {"x-ms-date": date, "x-ms-version": "2021-12-02"}
canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
resource = f"/{account}/{account}/{container}\nrestype:container"
text = "PUT" + "\n" * 12 + canonical + resource
digest = hmac.new(base64.b64decode(key), text.encode(), hashlib.sha256).digest()
headers["Authorization"] = f"SharedKey {account}:{base64.b64encode(digest).decode()}"
url = f"http://127.0.0.1:{port}/{account}/{container}?restype=container"
urllib.request.urlopen(urllib.request.Request(url, method="PUT", headers=headers)).read()
