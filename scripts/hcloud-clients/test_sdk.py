"""Hetzner's Python SDK, as Debian has it, uses the cloud's dialect. scripts/test-hcloud starts the cloud.

The SDK fails where an answer lacks a key that Hetzner's always have, or has null where those have a list.
"""
import os
import unittest

import hcloud
from hcloud.certificates.domain import ManagedCertificateStatus
from hcloud.images.domain import Image
from hcloud.load_balancer_types.domain import LoadBalancerType
from hcloud.load_balancers.domain import (
    LoadBalancerAlgorithm,
    LoadBalancerHealthCheck,
    LoadBalancerService,
    LoadBalancerServiceHttp,
    LoadBalancerTarget,
    LoadBalancerTargetIP,
    LoadBalancerTargetLabelSelector,
    LoadBalancerHealtCheckHttp,
)
from hcloud.locations.domain import Location
from hcloud.networks.domain import NetworkRoute, NetworkSubnet
from hcloud.server_types.domain import ServerType


def read(name):
    with open(os.environ[name], encoding="utf-8") as file:
        return file.read().strip()


class SDK(unittest.TestCase):
    def setUp(self):
        self.cloud = hcloud.Client(
            token=read("HCLOUD_TOKEN_FILE"), api_endpoint=os.environ["HCLOUD_ENDPOINT"], poll_interval=0.01
        )

    def done(self, action):
        """Waits for an action, which can be found afterwards with the same command."""
        action.wait_until_finished()
        found = self.cloud.actions.get_by_id(action.id)
        self.assertEqual((found.command, found.status), (action.command, "success"))
        return found

    def refused(self, code):
        test = self

        class Refused:
            def __enter__(self):
                return self

            def __exit__(self, kind, error, trace):
                test.assertIsInstance(error, hcloud.APIException, f"want {code}")
                test.assertEqual(error.code, code, error.message)
                return True

        return Refused()

    def server(self, name, **options):
        made = self.cloud.servers.create(
            name=name, server_type=ServerType(name="cx23"), image=Image(name="debian-12"), **options
        )
        self.addCleanup(made.server.delete)
        self.done(made.action)
        for action in made.next_actions:
            self.done(action)
        return self.cloud.servers.get_by_id(made.server.id)

    def balancer(self, name, **options):
        made = self.cloud.load_balancers.create(
            name=name,
            load_balancer_type=LoadBalancerType(name="lb11"),
            **{"location": Location(name="fsn1"), **options},
        )
        self.addCleanup(made.load_balancer.delete)
        self.done(made.action)
        return made.load_balancer

    def test_catalogue(self):
        self.assertEqual([l.name for l in self.cloud.locations.get_all()], ["fsn1", "nbg1", "hel1"])
        self.assertEqual(self.cloud.locations.get_by_name("fsn1").network_zone, "eu-central")
        self.assertIn("cx23", [t.name for t in self.cloud.server_types.get_all()])
        self.assertIn("lb11", [t.name for t in self.cloud.load_balancer_types.get_all()])
        self.assertTrue(self.cloud.images.get_all(type="system"))
        self.assertEqual(self.cloud.isos.get_all(), [])
        self.assertTrue(self.cloud.datacenters.get_all())

    def test_server(self):
        server = self.server("sdk-1", labels={"role": "web"})
        self.assertEqual(server.status, "running")
        self.assertTrue(server.public_net.ipv4.ip)
        self.assertTrue(server.public_net.ipv6.ip)
        self.assertEqual((server.private_net, server.volumes), ([], []))
        self.done(server.power_off())
        server.reload()
        self.assertEqual(server.status, "off")
        self.done(server.power_on())
        self.assertEqual(server.update(name="sdk-2").name, "sdk-2")
        self.done(server.change_protection(delete=True, rebuild=True))
        with self.refused("protected"):
            server.delete()
        self.done(server.change_protection(delete=False, rebuild=False))
        with self.refused("invalid_input"):
            server.update(labels={"no label": "x"})
        with self.refused("uniqueness_error"):
            self.server("sdk-2")
        self.assertEqual([s.name for s in self.cloud.servers.get_all(label_selector="role==web")], ["sdk-2"])

    def test_network(self):
        network = self.cloud.networks.create(
            name="SDK net_1",
            ip_range="10.30.0.0/16",
            subnets=[NetworkSubnet(type="cloud", ip_range="10.30.1.0/24", network_zone="eu-central")],
        )
        self.addCleanup(network.delete)
        self.assertEqual(network.subnets[0].gateway, "10.30.0.1")
        server = self.server("sdk-3", networks=[network])
        address = server.private_net[0].ip
        self.assertTrue(address.startswith("10.30.1."), address)
        self.done(network.add_route(NetworkRoute(destination="10.244.0.0/24", gateway=address)))
        network.reload()
        self.assertEqual([r.destination for r in network.routes], ["10.244.0.0/24"])
        self.done(network.delete_route(network.routes[0]))
        self.assertEqual([s.id for s in network.servers], [server.id])
        self.done(server.detach_from_network(network))

    def test_balancer(self):
        network = self.cloud.networks.create(
            name="sdk-balancers",
            ip_range="10.31.0.0/16",
            subnets=[NetworkSubnet(type="cloud", ip_range="10.31.0.0/16", network_zone="eu-central")],
        )
        self.addCleanup(network.delete)
        server = self.server("sdk-4", networks=[network], labels={"in": "sdk"})
        target = LoadBalancerTarget(type="server", server=server, use_private_ip=True)
        check = LoadBalancerHealthCheck(protocol="tcp", port=30080, interval=15, timeout=10, retries=3)
        service = LoadBalancerService(
            protocol="tcp", listen_port=8080, destination_port=30080, proxyprotocol=False, health_check=check
        )
        balancer = self.balancer(
            "SDK balancer_1", network=network, services=[service], targets=[target],
            algorithm=LoadBalancerAlgorithm(type="least_connections"), labels={"a": "b"},
        )
        balancer.reload()
        self.assertTrue(balancer.public_net.ipv4.ip)
        self.assertTrue(balancer.public_net.ipv6.ip)
        self.assertEqual(balancer.algorithm.type, "least_connections")
        self.assertEqual([t.server.id for t in balancer.targets], [server.id])
        self.assertEqual([s.listen_port for s in balancer.services], [8080])
        self.assertEqual(len(balancer.private_net), 1)
        with self.refused("source_port_already_used"):
            balancer.add_service(service)
        with self.refused("target_already_defined"):
            balancer.add_target(target)
        with self.refused("invalid_input"):
            service.health_check.interval = 1
            balancer.update_service(service)
        self.done(balancer.change_algorithm(LoadBalancerAlgorithm(type="round_robin")))
        self.done(balancer.change_type(LoadBalancerType(name="lb21")))
        self.done(balancer.change_dns_ptr(balancer.public_net.ipv4.ip, "lb.example.com"))
        self.done(balancer.disable_public_interface())
        self.done(balancer.enable_public_interface())
        selector = LoadBalancerTargetLabelSelector(selector="in=sdk")
        self.done(balancer.add_target(LoadBalancerTarget(type="label_selector", label_selector=selector, use_private_ip=True)))
        self.done(balancer.remove_target(LoadBalancerTarget(type="label_selector", label_selector=selector)))
        self.done(balancer.detach_from_network(network))
        balancer.reload()
        self.assertEqual((balancer.targets, balancer.private_net), ([], []))
        self.done(balancer.change_protection(delete=True))
        with self.refused("protected"):
            balancer.delete()
        self.done(balancer.change_protection(delete=False))
        self.assertIn("detach_from_network", [a.command for a in balancer.get_actions()])

    def test_certificate(self):
        certificate = self.cloud.certificates.create(
            name="SDK certificate", certificate=read("CERTIFICATE"), private_key=read("PRIVATE_KEY")
        )
        self.addCleanup(certificate.delete)
        self.assertEqual(certificate.domain_names, ["sdk.example.com"])
        managed = self.cloud.certificates.create_managed(name="SDK managed", domain_names=["sdk.example.com"])
        self.addCleanup(managed.certificate.delete)
        self.done(managed.action)
        managed.certificate.reload()
        self.assertEqual(managed.certificate.status.issuance, ManagedCertificateStatus.ISSUANCE_COMPLETED
                         if hasattr(ManagedCertificateStatus, "ISSUANCE_COMPLETED") else "completed")
        balancer = self.balancer("sdk-https")
        http = LoadBalancerServiceHttp(certificates=[certificate], redirect_http=True, sticky_sessions=True,
                                       cookie_name="SDK", cookie_lifetime=60)
        check = LoadBalancerHealthCheck(
            protocol="http", port=30443, interval=15, timeout=10, retries=3,
            http=LoadBalancerHealtCheckHttp(domain="sdk.example.com", path="/ok", response="fine", tls=False,
                                            status_codes=["200"]),
        )
        service = LoadBalancerService(protocol="https", listen_port=443, destination_port=30443,
                                      proxyprotocol=False, http=http, health_check=check)
        self.done(balancer.add_service(service))
        balancer.reload()
        self.assertEqual(balancer.services[0].http.certificates[0].id, certificate.id)
        self.assertEqual(balancer.services[0].health_check.http.response, "fine")
        with self.refused("resource_in_use"):
            certificate.delete()
        self.done(balancer.delete_service(service))

    def test_ssh_key(self):
        key = self.cloud.ssh_keys.create(name="SDK key", public_key=read("PUBLIC_KEY"))
        self.addCleanup(key.delete)
        self.assertEqual(self.cloud.ssh_keys.get_by_fingerprint(key.fingerprint).id, key.id)
        with self.refused("uniqueness_error"):
            self.cloud.ssh_keys.create(name="other", public_key=read("PUBLIC_KEY"))

    def test_ip_target(self):
        balancer = self.balancer("sdk-ip")
        with self.refused("ip_not_owned"):
            balancer.add_target(LoadBalancerTarget(type="ip", ip=LoadBalancerTargetIP(ip="203.0.113.7")))


if __name__ == "__main__":
    unittest.main(verbosity=2)
