#!/usr/bin/env python3
"""A driver for the conformance suite of CCM Lab.

Begin with create_instance, which says what is not written yet, and go on from one failure to the next:

    lab conformance driver check ./driver.py

What else a driver can do, and which tests that brings, is in lab/conformance/driver/FEATURES.md. The steps that
comments name are those of lab/conformance/README.md. Below the class Cloud, nothing is about your cloud.
"""
import http.server
import json
import os
import re
import signal
import socketserver
import sys
import urllib.parse


class NotFound(Exception):
    """What was asked for is not there. Where it was to be gone, that is well."""


class Cloud:
    """Calls your cloud. What changes something returns when the cloud says that it is so."""

    cluster = ""  # its name, by which your CCM marks what is the cluster's

    def describe(self):
        return {
            "name": "nebula",
            # Step 3: what the answers below have: node-names, zones, instance-types, listeners, node-ports, targets, udp.
            "features": [],
            # What your cloud does not have is said here, so that no test asks for it:
            # "unsupported": {"load-balancers": "nebula has none"},
            #
            # Step 4: which calls of your cloud's API are about what: with that the suite makes all faults.
            # "proxy": {
            #     "upstream": "https://api.nebula.example",
            #     "rules": [
            #         {"thing": "instances", "method": "GET", "path": "/v1/servers", "list": "/servers",
            #          "stateFields": ["/status"]},
            #         {"thing": "instances", "path": "/v1/servers/{rest...}"},
            #         {"thing": "balancers", "path": "/v1/load_balancers/{rest...}"},
            #     ],
            # },
            "ccm": {
                "args": [
                    "--kubeconfig={{.Kubeconfig}}", "--cloud-config={{.CloudConfig}}",
                    "--cluster-name={{.ClusterName}}", "--bind-address={{.Address}}", "--secure-port={{.Port}}",
                    "--configure-cloud-routes=false", "--leader-elect-lease-duration=10s",
                    "--leader-elect-renew-deadline=8s", "--leader-elect-retry-period=1s", "--node-monitor-period=1s",
                ],
                # What becomes the file {{.CloudConfig}}. With a proxy, the CCM must call {{.CloudURL}}, and nothing
                # else.
                "config": "url: {{.CloudURL}}\n",
            },
        }

    # Step 2 begins here.
    def create_instance(self, spec):
        """Makes an instance called spec["name"], and returns when it runs:
        {"id": …, "name": …, "providerID": "nebula://…", "internalIPs": […]}"""
        raise NotImplementedError("create_instance")

    def terminate_instance(self, instance_id):
        raise NotImplementedError("terminate_instance")

    def stop_instance(self, instance_id):
        raise NotImplementedError("stop_instance")

    def start_instance(self, instance_id):
        """Returns when the instance runs again."""
        raise NotImplementedError("start_instance")

    # Balancers are {"id": …, "active": True, "service": UID of its Service, "address": "192.0.2.1"}
    def list_balancers(self):
        """Those of this cluster's Services, also while they are made or deleted. A cloud without load balancers
        returns []."""
        raise NotImplementedError("list_balancers")

    def get_balancer(self, balancer_id):
        """A balancer of any owner; raises NotFound."""
        raise NotImplementedError("get_balancer")

    def delete_balancer(self, balancer_id):
        raise NotImplementedError("delete_balancer")


def hello(cloud, asked):
    cloud.cluster = asked["clusterName"]
    said = dict(cloud.describe(), protocol="v1")
    # A suite of an earlier release says which features it knows: of the others, nothing is said.
    known = asked.get("features") or said["features"]
    said["features"] = [f for f in said["features"] if f in known]
    return said


def gone(delete, thing):
    try:
        delete(thing)
    except NotFound:
        pass


# The protocol's paths: a method, a path with an ID or none, and what answers cloud, ID and the request's body.
# Step 5: what there is a feature for has one more line here, such as POST /v1/balancers/([^/]+)/change.
PATHS = [
    ("POST", "/hello", lambda cloud, _, body: hello(cloud, body)),
    ("POST", "/v1/instances", lambda cloud, _, body: cloud.create_instance(body)),
    ("POST", "/v1/instances/([^/]+)/stop", lambda cloud, id, _: cloud.stop_instance(id)),
    ("POST", "/v1/instances/([^/]+)/start", lambda cloud, id, _: cloud.start_instance(id)),
    ("DELETE", "/v1/instances/([^/]+)", lambda cloud, id, _: gone(cloud.terminate_instance, id)),
    ("GET", "/v1/balancers", lambda cloud, _, __: {"balancers": cloud.list_balancers()}),
    ("GET", "/v1/balancers/([^/]+)", lambda cloud, id, _: cloud.get_balancer(id)),
    ("DELETE", "/v1/balancers/([^/]+)", lambda cloud, id, _: gone(cloud.delete_balancer, id)),
]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        for method, pattern, call in PATHS:
            found = re.fullmatch(pattern, self.path)
            if found and method == self.command:
                thing = urllib.parse.unquote(found.group(1)) if found.groups() else None
                return self.carry_out(lambda: call(self.server.cloud, thing, json.loads(body or "null")))
        return self.problem(501, f"{self.command} {self.path} is not written yet: see PATHS")

    def carry_out(self, call):
        try:
            answer = call()
        except NotFound as err:
            return self.problem(404, str(err) or "there is none of this ID")
        except NotImplementedError as err:
            return self.problem(501, f"{err} is not written yet: see class Cloud")
        except Exception as err:  # Whatever your cloud says, the report shows.
            return self.problem(500, f"{type(err).__name__}: {err}")
        if answer is None:
            return self.send(204, "application/json", b"")
        return self.send(200, "application/json", json.dumps(answer).encode())

    def problem(self, status, detail):
        self.send(status, "application/problem+json", json.dumps({"detail": detail}).encode())

    def send(self, status, content_type, body):
        self.send_response(status)
        if status != 204:
            self.send_header("Content-Type", content_type)
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answer

    def log_message(self, *args):
        pass  # What you print to sys.stderr is in the lab's log conformance-driver.


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    cloud = Cloud()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    Server(os.environ["CCMLAB_DRIVER_SOCKET"], Handler).serve_forever()
