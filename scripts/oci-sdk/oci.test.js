// Oracle's TypeScript SDK judges fakecloud's dialect of Oracle Cloud Infrastructure: a signer, a waiter and models
// that nobody of this project wrote. scripts/test-oci-sdk starts the cloud and sets the environment.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash, createPublicKey, generateKeyPairSync } from "node:crypto";
import { readFileSync } from "node:fs";
import test from "node:test";
import common from "oci-common";
import core from "oci-core";
import identity from "oci-identity";
import loadbalancer from "oci-loadbalancer";
import networkloadbalancer from "oci-networkloadbalancer";

const { FAKECLOUD, OCI_ENDPOINT, OCI_PROJECT, OCI_TOKEN, OCI_KEY_FILE } = process.env;
const compartmentId = `ocid1.tenancy.fc1..${OCI_PROJECT}`; // The root compartment.
const once = { terminationStrategy: new common.MaxAttemptsTerminationStrategy(1) };

// client makes a client of the SDK that signs with a key.
function client(Client, key = readFileSync(OCI_KEY_FILE, "utf8")) {
  const der = createPublicKey(readFileSync(OCI_KEY_FILE)).export({ type: "spki", format: "der" });
  const fingerprint = createHash("md5").update(der).digest("hex").match(/../g).join(":");
  const made = new Client({
    authenticationDetailsProvider: new common.SimpleAuthenticationDetailsProvider(
      compartmentId, `ocid1.user.fc1..${OCI_TOKEN}`, fingerprint, key, null,
    ),
  });
  made.endpoint = OCI_ENDPOINT;
  return made;
}

// wait has one of the SDK's waiters ask for a work request until that has ended.
async function wait(waited, workRequestId) {
  assert.ok(workRequestId, "opc-work-request-id");
  const waiter = waited.createWaiters({
    terminationStrategy: new common.MaxTimeTerminationStrategy(30),
    delayStrategy: new common.FixedTimeDelayStrategy(0.02),
  });
  return (await waiter.forWorkRequest({ workRequestId })).workRequest;
}

function refuses(call, statusCode, serviceCode) {
  return assert.rejects(call, (error) => {
    assert.deepEqual([error.statusCode, error.serviceCode], [statusCode, serviceCode], error.message);
    return true;
  });
}

async function findNode() {
  const compute = client(core.ComputeClient);
  const { items } = await compute.listInstances({ compartmentId, displayName: "node-1" });
  assert.equal(items.length, 1);
  const instanceId = items[0].id;
  const { items: attachments } = await compute.listVnicAttachments({ compartmentId, instanceId });
  assert.deepEqual(attachments.map((a) => [a.instanceId, a.lifecycleState]), [[instanceId, "ATTACHED"]]);
  const network = client(core.VirtualNetworkClient);
  const { vnic } = await network.getVnic({ vnicId: attachments[0].vnicId });
  return { compute, network, instanceId, vnic };
}

test("nodes", async () => {
  const { compute, network, instanceId, vnic } = await findNode();
  const { instance } = await compute.getInstance({ instanceId });
  assert.equal(instance.displayName, "node-1");
  assert.equal(instance.lifecycleState, "RUNNING");
  assert.ok(Date.parse(instance.timeCreated));
  assert.ok(vnic.isPrimary);
  const { subnet } = await network.getSubnet({ subnetId: vnic.subnetId });
  assert.equal(subnet.id, vnic.subnetId);
  const { items } = await client(identity.IdentityClient).listAvailabilityDomains({ compartmentId });
  assert.ok(items.some((domain) => domain.name === instance.availabilityDomain));
});

test("security lists", async () => {
  const { network, vnic } = await findNode();
  const { subnet } = await network.getSubnet({ subnetId: vnic.subnetId });
  const [securityListId] = subnet.securityListIds;
  const { securityList, etag } = await network.getSecurityList({ securityListId });
  const rule = {
    source: "0.0.0.0/0", protocol: "6", isStateless: false,
    tcpOptions: { destinationPortRange: { min: 80, max: 80 } },
  };
  const updateSecurityListDetails = { ingressSecurityRules: [rule], egressSecurityRules: [] };
  const changed = await network.updateSecurityList({ securityListId, ifMatch: etag, updateSecurityListDetails });
  assert.notEqual(changed.etag, etag);
  const read = await network.getSecurityList({ securityListId });
  assert.equal(read.etag, changed.etag);
  assert.equal(read.securityList.ingressSecurityRules[0].tcpOptions.destinationPortRange.max, 80);
  assert.equal(read.securityList.timeCreated, securityList.timeCreated);
  const stale = network.updateSecurityList({ securityListId, ifMatch: etag, updateSecurityListDetails });
  await refuses(stale, 412, "NoEtagMatch");
});

test("load balancers", async () => {
  const { vnic } = await findNode();
  const lb = client(loadbalancer.LoadBalancerClient);
  const displayName = "8a4a7d3e-5b0e-4b6e-9a8e-1f7a3f1f0a11";
  assert.deepEqual((await lb.listLoadBalancers({ compartmentId, displayName })).items, []);
  const healthChecker = { protocol: "HTTP", port: 10256, urlPath: "/healthz", returnCode: 200, retries: 3 };
  const set = {
    policy: "ROUND_ROBIN", healthChecker, backends: [{ ipAddress: vnic.privateIp, port: 30080, weight: 1 }],
  };
  const made = await lb.createLoadBalancer({
    createLoadBalancerDetails: {
      compartmentId, displayName, shapeName: "100Mbps", isPrivate: false, subnetIds: [vnic.subnetId],
      backendSets: { "TCP-80": set },
      listeners: { "TCP-80": { defaultBackendSetName: "TCP-80", port: 80, protocol: "TCP" } },
    },
  });
  const { loadBalancerId, lifecycleState } = await wait(lb, made.opcWorkRequestId);
  assert.equal(lifecycleState, "SUCCEEDED");
  const { items } = await lb.listLoadBalancers({ compartmentId, displayName });
  assert.deepEqual(items.map((item) => item.id), [loadBalancerId]);
  const read = async () => (await lb.getLoadBalancer({ loadBalancerId })).loadBalancer;
  const { backendSets, listeners, ipAddresses } = await read();
  assert.equal(backendSets["TCP-80"].healthChecker.urlPath, "/healthz");
  assert.equal(listeners["TCP-80"].port, 80);
  assert.equal(ipAddresses.length, 1);

  const changed = await lb.updateBackendSet({
    loadBalancerId, backendSetName: "TCP-80",
    updateBackendSetDetails: { ...set, backends: [{ ipAddress: vnic.privateIp, port: 30081 }] },
  });
  assert.equal((await wait(lb, changed.opcWorkRequestId)).lifecycleState, "SUCCEEDED");
  assert.deepEqual((await read()).backendSets["TCP-80"].backends.map((b) => b.port), [30081]);

  const stranger = generateKeyPairSync("rsa", { modulusLength: 2048 }).privateKey;
  const foreign = client(loadbalancer.LoadBalancerClient, stranger.export({ type: "pkcs1", format: "pem" }));
  await refuses(foreign.getLoadBalancer({ loadBalancerId }), 401, "NotAuthenticated");

  const deleted = await lb.deleteLoadBalancer({ loadBalancerId });
  assert.equal((await wait(lb, deleted.opcWorkRequestId)).lifecycleState, "SUCCEEDED");
  await refuses(lb.getLoadBalancer({ loadBalancerId }), 404, "NotAuthorizedOrNotFound");
});

test("network load balancers", async () => {
  const { vnic, instanceId } = await findNode();
  const nlb = client(networkloadbalancer.NetworkLoadBalancerClient);
  const displayName = "default/web/8a4a7d3e-5b0e-4b6e-9a8e-1f7a3f1f0a12";
  const set = {
    policy: "FIVE_TUPLE", isPreserveSource: false,
    healthChecker: { protocol: "HTTP", port: 10256, urlPath: "/healthz" },
    backends: [{ targetId: instanceId, ipAddress: vnic.privateIp, port: 30080 }],
  };
  const creation = {
    opcRetryToken: "one-creation",
    createNetworkLoadBalancerDetails: {
      compartmentId, displayName, subnetId: vnic.subnetId, isPrivate: false,
      backendSets: { "UDP-53": set },
      listeners: { "UDP-53": { name: "UDP-53", defaultBackendSetName: "UDP-53", port: 53, protocol: "UDP" } },
    },
  };
  const made = await nlb.createNetworkLoadBalancer(creation);
  const again = await nlb.createNetworkLoadBalancer(creation);
  assert.equal(again.networkLoadBalancer.id, made.networkLoadBalancer.id);
  assert.equal((await wait(nlb, made.opcWorkRequestId)).status, "SUCCEEDED");
  const { networkLoadBalancerCollection: all } = await nlb.listNetworkLoadBalancers({ compartmentId, displayName });
  const networkLoadBalancerId = made.networkLoadBalancer.id;
  assert.deepEqual(all.items.map((item) => [item.id, item.displayName]), [[networkLoadBalancerId, displayName]]);

  const update = {
    networkLoadBalancerId, backendSetName: "UDP-53",
    updateBackendSetDetails: { ...set, backends: [{ ipAddress: vnic.privateIp, port: 30053 }] },
  };
  const state = async () =>
    (await nlb.getNetworkLoadBalancer({ networkLoadBalancerId })).networkLoadBalancer.lifecycleState;
  assert.equal(await state(), "ACTIVE");
  execFileSync(FAKECLOUD, ["faults", "create", "--stuck"]); // It goes on being changed.
  await nlb.updateBackendSet(update);
  assert.equal(await state(), "UPDATING");
  await refuses(nlb.updateBackendSet({ ...update, retryConfiguration: once }), 409, "IncorrectState");
  // The SDK knows that such a change is to be made again.
  let refusals = 0;
  const delay = () => {
    if (refusals++ === 0) {
      execFileSync(FAKECLOUD, ["faults", "delete", "--all"]);
    }
    return 0.1;
  };
  const retryConfiguration = {
    delayStrategy: { delay }, terminationStrategy: new common.MaxTimeTerminationStrategy(30),
  };
  const repeated = await nlb.updateBackendSet({ ...update, retryConfiguration });
  assert.ok(refusals > 0);
  assert.equal((await wait(nlb, repeated.opcWorkRequestId)).status, "SUCCEEDED");
  assert.equal(await state(), "ACTIVE");

  const deleted = await nlb.deleteNetworkLoadBalancer({ networkLoadBalancerId });
  assert.equal((await wait(nlb, deleted.opcWorkRequestId)).status, "SUCCEEDED");
  await refuses(nlb.getNetworkLoadBalancer({ networkLoadBalancerId }), 404, "NotAuthorizedOrNotFound");
});
