package cli

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/clikit"
)

func (a *app) balancersCreate() *cobra.Command {
	return a.balancerKind().createCommand(&cobra.Command{
		Use: "create NAME", Short: "Create a load balancer",
		Example: `  fakecloud load-balancers create web --listener 8080:30080 --target node-1 --target node-2
  fakecloud load-balancers create web --listener 8080:30080 --health-check http:10256/healthz --source-range 10.0.0.0/8
  fakecloud load-balancers create web --listener 8080:30080 --address shop --algorithm least-connections --drain 30s
  fakecloud load-balancers create web --kind network --listener 80 --target node-1 --target node-2
  fakecloud load-balancers create shop --listener 443:30080/https --certificate shop
  fakecloud load-balancers create shop --listener 443:30080/https --listener 80/http --certificate shop --redirect-port 443
  fakecloud load-balancers create dns --listener 5353:30053/tcp --listener 5353:30053/udp --ip-family ipv4,ipv6`,
	})
}

func (a *app) balancersUpdate() *cobra.Command {
	return a.balancerKind().updateCommand(&cobra.Command{
		Short: "Change a load balancer",
		Long: "Change a load balancer. What is given replaces what it has: all listeners, all targets, all source ranges\n" +
			"(--source-range \"\" lets everyone in), all tags; --network \"\" detaches it. What is not given stays as it is.",
		Example: `  fakecloud load-balancers update web --target node-1 --target node-3 --drain 30s
  fakecloud load-balancers update web --algorithm source-hash --connection-limit 100
  fakecloud load-balancers update web --health-check none
  fakecloud load-balancers update web --network default --scheme internal`,
	})
}

// completeBalancer sets the options of listeners and of the health check in those given or, if none was given, in
// those that the balancer has.
func completeBalancer(_ *cobra.Command, given map[string]any, has *api.LoadBalancer) error {
	present := map[string]any{"listeners": []any{}}
	if has != nil {
		present = toMap(*has)
	}
	options, some := given["listeners[]"].(map[string]any)
	delete(given, "listeners[]")
	if given["listeners"] == nil && (some || has == nil) {
		given["listeners"] = present["listeners"]
	}
	for option, value := range options {
		for _, l := range given["listeners"].([]any) {
			listener := l.(map[string]any)
			switch protocol := listener["protocol"]; {
			case option == "proxyProtocol" && protocol == string(api.ProtocolUDP):
			case option == "certificateIds" && !api.Protocol(fmt.Sprint(protocol)).IsTLS():
			case option == "redirectPort" && protocol != string(api.ProtocolHTTP):
			case strings.HasPrefix(option, "stickyCookie") && !api.Protocol(fmt.Sprint(protocol)).IsHTTP():
			default:
				listener[option] = value
			}
		}
	}
	check, some := given["healthCheck"].(map[string]any)
	if !some || check["protocol"] != nil {
		return nil
	}
	whole, ok := present["healthCheck"].(map[string]any)
	if !ok {
		return clikit.Usagef("there is no check to set this for: give --health-check too")
	}
	maps.Copy(whole, check)
	given["healthCheck"] = whole
	return nil
}

func parseListener(text string) (any, error) {
	ports, protocol, named := strings.Cut(text, "/")
	if !named {
		protocol = string(api.ProtocolTCP)
	}
	from, to, _ := strings.Cut(ports, ":")
	port, err1 := strconv.Atoi(from)
	target, err2 := strconv.Atoi(cmp.Or(to, from))
	if err1 != nil || err2 != nil || !api.Protocol(protocol).Valid() {
		return nil, errors.New("want PORT:TARGETPORT[/PROTOCOL] or PORT[/PROTOCOL], e.g. 8080:30080 or 5353:30053/udp")
	}
	return api.Listener{Protocol: api.Protocol(protocol), Port: port, TargetPort: target}, nil
}

func parseHealthCheck(text string) (any, error) {
	if text == string(api.HealthCheckNone) {
		return api.HealthCheck{Protocol: api.HealthCheckNone}, nil
	}
	protocol, rest, _ := strings.Cut(text, ":")
	number, path, hasPath := strings.Cut(rest, "/")
	port, err := strconv.Atoi(number)
	h := api.HealthCheck{Protocol: api.HealthCheckProtocol(protocol), Port: port}
	if err != nil || h.Protocol != api.HealthCheckTCP && !h.Protocol.IsHTTP() {
		return nil, errors.New("want tcp:PORT, http:PORT[/PATH] or https:PORT[/PATH], e.g. http:10256/healthz, or none")
	}
	if hasPath {
		h.Path = "/" + path
	}
	return h, nil
}

// showOptions names the options that differ from their defaults.
func showOptions(lb api.LoadBalancer) string {
	var out []string
	if lb.Type != api.LoadBalancerUnlimited {
		out = append(out, string(lb.Type))
	}
	if lb.Kind == api.KindNetwork {
		out = append(out, string(lb.Kind))
	}
	if lb.Scheme == api.SchemeInternal {
		out = append(out, string(lb.Scheme))
	}
	if lb.Algorithm != api.AlgorithmRoundRobin && lb.Algorithm != api.AlgorithmFlowHash {
		out = append(out, string(lb.Algorithm))
	}
	for _, o := range []struct {
		name    string
		seconds api.Seconds
	}{{"affinity", lb.ClientAffinitySeconds}, {"idle", lb.IdleTimeoutSeconds}, {"drain", lb.DrainSeconds}} {
		if o.seconds > 0 {
			out = append(out, fmt.Sprintf("%s=%vs", o.name, o.seconds))
		}
	}
	if lb.DeletionProtection {
		out = append(out, "protected")
	}
	return cmp.Or(strings.Join(out, ","), "-")
}
