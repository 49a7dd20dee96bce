package annotations

// The table of all annotations, and how their values are parsed.

import (
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

const (
	day              = 24 * time.Hour
	needsHealthCheck = "not with `health-check: none`"
)

// Definitions are all annotations, in the order of ANNOTATIONS.md.
var Definitions = []Definition{
	{
		Name: Kind, Want: "proxy or network", Default: "proxy", Example: "network",
		Effect: "`kind`. A proxy makes connections of its own to the nodes' node ports. A network balancer passes packets on, and the Service gets `ipMode: VIP`, by which kube-proxy takes them: pods see the client's address (with `externalTrafficPolicy: Local`), and no node ports are needed. Not with `connection-limit`, `idle-timeout`, `proxy-protocol` and IPv6. A change keeps the address and ends connections. Where the cloud has no network balancers, an Event says why.",
		set:    func(v *Values, s string) bool { return parseEnum(&v.Kind, s, api.KindProxy, api.KindNetwork) },
	},
	{
		Name: Scheme, Want: "public or internal", Default: "public", Example: "internal",
		Effect: "`scheme`. An internal balancer takes no reserved address; one that has one is replaced when it is made internal.",
		set:    func(v *Values, s string) bool { return parseEnum(&v.Scheme, s, api.SchemePublic, api.SchemeInternal) },
	},
	{
		Name: Algorithm, Want: "round-robin, least-connections or source-hash; of network balancers flow-hash or source-hash",
		Default: "round-robin; of network balancers flow-hash", Example: "least-connections",
		Effect: "`algorithm`: which target a new connection goes to.",
		set: func(v *Values, s string) bool {
			return parseEnum(&v.Algorithm, s, api.AlgorithmRoundRobin, api.AlgorithmLeastConnections,
				api.AlgorithmSourceHash, api.AlgorithmFlowHash)
		},
	},
	{
		Name: IdleTimeout, Want: "a duration in whole seconds up to 24h, such as 90s or 5m, or 0 for the cloud's own",
		Default: "0", Example: "5m",
		Effect: "`idleTimeoutSeconds`: idle connections are closed after this time.",
		set:    func(v *Values, s string) bool { return parseSeconds(&v.IdleTimeout, s, 0, day) },
	},
	{
		Name: Drain, Want: "a duration in whole seconds up to 24h, such as 90s or 5m, or 0 for no limit",
		Default: "0", Example: "30s",
		Effect: "`drainSeconds`: how long a connection may last after its port or node has left the Service. The Service must have a TCP port.",
		set:    func(v *Values, s string) bool { return parseSeconds(&v.Drain, s, 0, day) },
	},
	{
		Name: ConnectionLimit, Default: "0", Example: "1000,443=200,53/udp=50",
		Want:   "a number from 0 (no limit) to 1000000, for all ports or by port, such as 1000 or 1000,443=200,53/udp=50",
		Effect: "`connectionLimit` of the listeners: the most connections (for UDP, clients) at a time.",
		set: func(v *Values, s string) bool {
			return parsePerPort(&v.ConnectionLimit, s, func(n *int, s string) bool {
				return parseNumber(n, s, 0, 1_000_000)
			})
		},
	},
	{
		Name: ProxyProtocol, Want: "v1 or v2, for all TCP ports or by port, such as v2 or 443=v2,8443=v1",
		Default: "none", Example: "443=v2,8443=v1",
		Effect: "`proxyProtocol` of the TCP listeners: a header tells the pods the client's address; they must expect it.",
		set: func(v *Values, s string) bool {
			return parsePerPort(&v.ProxyProtocol, s, func(p *api.ProxyProtocol, s string) bool {
				return parseEnum(p, s, api.ProxyProtocolV1, api.ProxyProtocolV2)
			})
		},
	},
	{
		Name: HealthCheck, Want: "none, tcp or http", Default: "kube-proxy is asked, by HTTP", Example: "tcp",
		Effect: "`healthCheck.protocol`: how the balancer checks whether a node serves; `none` for no check, so that dead nodes keep getting traffic. Without the annotation kube-proxy is asked, by HTTP on port 10256, `/healthz`. Not with `externalTrafficPolicy: Local`, where kube-proxy is asked whether the node has a pod of the Service, by HTTP on the `healthCheckNodePort`.",
		set: func(v *Values, s string) bool {
			return parseEnum(&v.HealthCheck.Protocol, s, api.HealthCheckNone, api.HealthCheckTCP, api.HealthCheckHTTP)
		},
	},
	{
		Name: HealthCheckPort, Want: "a port of the nodes, from 1 to 65535",
		Default: "10256, kube-proxy's own; with `health-check` the node port of the Service's first TCP port",
		Example: "10257",
		Effect:  "`healthCheck.port`; " + needsHealthCheck + ".",
		set:     func(v *Values, s string) bool { return parseNumber(&v.HealthCheck.Port, s, 1, 65535) },
	},
	{
		Name: HealthCheckPath, Want: "a path that begins with /, of at most 1024 printable characters",
		Default: "`/healthz`, kube-proxy's own; with `health-check` `/`", Example: "/ready",
		Effect: "`healthCheck.path`, of an HTTP check.",
		set:    func(v *Values, s string) bool { v.HealthCheck.Path = s; return isURLPath(s) },
	},
	{
		Name: HealthCheckCodes, Want: "HTTP statuses from 200 to 599 and ranges of them, such as 200-299,301",
		Default: "200", Example: "200-299,301",
		Effect: "`healthCheck.expectedCodes`, of an HTTP check.",
		set:    func(v *Values, s string) bool { v.HealthCheck.ExpectedCodes = s; return areStatusCodes(s) },
	},
	{
		Name: HealthCheckInterval, Want: "a duration in whole seconds from 1s to 5m",
		Default: "5s; with `externalTrafficPolicy: Local` 1s", Example: "10s",
		Effect: "`healthCheck.intervalSeconds`; " + needsHealthCheck + ".",
		set: func(v *Values, s string) bool {
			return parseSeconds(&v.HealthCheck.IntervalSeconds, s, time.Second, 5*time.Minute)
		},
	},
	{
		Name: HealthCheckTimeout, Want: "a duration in whole seconds from 1s to 1m",
		Default: "2s, or the interval if that is less", Example: "3s",
		Effect: "`healthCheck.timeoutSeconds`, at most the interval; " + needsHealthCheck + ".",
		set: func(v *Values, s string) bool {
			return parseSeconds(&v.HealthCheck.TimeoutSeconds, s, time.Second, time.Minute)
		},
	},
	{
		Name: HealthCheckHealthyThreshold, Want: "a number from 1 to 10",
		Default: "1 where kube-proxy is asked, else 2", Example: "3",
		Effect: "`healthCheck.healthyThreshold`: a node gets traffic after so many successful checks in a row; " + needsHealthCheck +
			".",
		set: func(v *Values, s string) bool { return parseNumber(&v.HealthCheck.HealthyThreshold, s, 1, 10) },
	},
	{
		Name: HealthCheckUnhealthyThreshold, Want: "a number from 1 to 10", Default: "2", Example: "3",
		Effect: "`healthCheck.unhealthyThreshold`: a node gets no more traffic after so many failed checks in a row; " +
			needsHealthCheck + ".",
		set: func(v *Values, s string) bool { return parseNumber(&v.HealthCheck.UnhealthyThreshold, s, 1, 10) },
	},
	{
		Name: Address, Want: "the name or the ID of a reserved address of the project", Default: "the lowest free one",
		Example: "web",
		Effect:  "`addressId`. The address is final in the cloud: to change it, the balancer is replaced, if the new address is free. A balancer keeps its address when the annotation is removed, and when another address gets the chosen name. `loadBalancerIP` does the same by IP.",
		set:     func(v *Values, s string) bool { v.Address = s; return isDNSName(s) },
	},
	{
		Name: Tags,
		Want: "key=value pairs with commas between, keys of at most 128 bytes and values of at most 256, none beginning with kubernetes-", Default: "none", Example: "team=blue,cost-centre=42",
		Effect: "`tags`, beside our own. A tag that is removed from the annotation is removed from the balancer, if the keys together have at most 256 bytes; those beyond that stay.",
		set:    func(v *Values, s string) bool { return parseTags(&v.Tags, s) },
	},
	{
		Name: IPMode, Want: "VIP or Proxy", Default: "Proxy; of network balancers VIP, and nothing else",
		Example: "VIP",
		Effect:  "only `ipMode` of the addresses in the Service's status. With `Proxy`, traffic from pods and nodes to these addresses goes through the balancer. With `VIP`, kube-proxy sends it directly to a pod, past the balancer's PROXY protocol, source ranges and limits.",
		set: func(v *Values, s string) bool {
			return parseEnum(&v.IPMode, s, corev1.LoadBalancerIPModeVIP, corev1.LoadBalancerIPModeProxy)
		},
	},
	{
		Name: Hostname, Want: "a DNS name in lower case, and no IP address", Default: "none", Example: "web.example.com",
		Effect: "only `hostname` in the Service's status, in place of its IP addresses: clients use the name, for which somebody else creates the DNS record, and kube-proxy does not shortcut traffic to the balancer.",
		set:    func(v *Values, s string) bool { v.Hostname = s; return isHostname(s) },
	},
	{
		Name: OnDelete, Want: "delete, keep or refuse", Default: "delete", Example: "keep",
		Effect: "what happens to the balancer when its Service is deleted, or is no longer of type LoadBalancer. `keep`: it stays as it is, without the cluster's tags, so that the CCM neither deletes nor updates it. `refuse`: `deletionProtection`, so that nobody can delete it, and the Service stays until the annotation is changed. `delete` removes a protection; without the annotation, the CCM removes the protection that `refuse` set, but not one that somebody set in the cloud.",
		set:    func(v *Values, s string) bool { return parseEnum(&v.OnDelete, s, Delete, Keep, Refuse) },
	},
	{
		Name: NodeSelector, Want: "a label selector, such as pool=web or zone in (a,b),!spot", Default: "all Nodes",
		Example: "pool=web",
		Effect:  "`targets`: the Nodes with such labels, unless they are excluded from all balancers. Changed labels take effect within a minute.",
		set:     func(v *Values, s string) bool { return parseSelector(&v.NodeSelector, s) },
	},
}

func parseEnum[T ~string](to *T, s string, values ...T) bool {
	*to = T(s)
	return slices.Contains(values, *to)
}

func parseSelector(to *labels.Selector, s string) bool {
	selector, err := labels.Parse(s)
	*to = selector
	return err == nil && !selector.Empty()
}

func parseNumber(to *int, s string, least, most int) bool {
	n, err := strconv.Atoi(s)
	*to = n
	return err == nil && n >= least && n <= most
}

func parseSeconds(to *api.Seconds, s string, least, most time.Duration) bool {
	d, err := time.ParseDuration(s)
	*to = api.Seconds(d / time.Second)
	return err == nil && d%time.Second == 0 && d >= least && d <= most
}

var printablePath = regexp.MustCompile(`^/[!-~]*$`)

func isURLPath(s string) bool {
	_, err := url.ParseRequestURI(s)
	return err == nil && printablePath.MatchString(s) && len(s) <= 1024
}

var statusRange = regexp.MustCompile(`^([2-5][0-9]{2})(?:-([2-5][0-9]{2}))?$`)

// areStatusCodes tells whether s is a list of HTTP statuses and ranges, by the same rule as the cloud's.
func areStatusCodes(s string) bool {
	for part := range strings.SplitSeq(s, ",") {
		status := statusRange.FindStringSubmatch(part)
		if status == nil || status[2] != "" && status[2] < status[1] {
			return false
		}
	}
	return len(s) <= 100
}

func isDNSName(s string) bool { return len(validation.IsDNS1123Subdomain(s)) == 0 }

// isHostname tells whether the API server takes s as the host name of a balancer.
func isHostname(s string) bool {
	_, err := netip.ParseAddr(s)
	return err != nil && isDNSName(s)
}

func parseTags(to *api.Tags, s string) bool {
	*to = api.Tags{}
	for pair := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		_, twice := (*to)[key]
		if !ok || twice || key == "" || len(key) > 128 || len(value) > 256 || strings.HasPrefix(key, "kubernetes-") {
			return false
		}
		(*to)[key] = value
	}
	return true
}
