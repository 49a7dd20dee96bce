package console

import (
	"context"
	"slices"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/fakecloud/console/scene"
)

// ActsOn are what can be done with a thing of the cloud in its present state.
func ActsOn(t scene.Object) []Act {
	do := func(resource, verb string) Act {
		return Act{
			Verb: verb, Command: []string{"fakecloud", resource, verb, t.Name}, Final: verb == "terminate" || verb == "delete",
		}
	}
	switch t.Kind {
	case scene.KindInstance:
		return instanceActs(t, do)
	case scene.KindBalancer:
		return []Act{do("load-balancers", "delete")}
	case scene.KindRoute:
		return []Act{{Verb: "delete", Command: []string{"fakecloud", "routes", "delete", t.CloudID}, Final: true}}
	case scene.KindFault:
		return []Act{{Verb: "end", Command: []string{"fakecloud", "faults", "delete", t.CloudID}}}
	}
	return nil
}

func instanceActs(t scene.Object, do func(resource, verb string) Act) []Act {
	terminate := do("instances", "terminate")
	switch api.InstanceState(t.State) {
	case api.InstanceRunning:
		return []Act{do("instances", "stop"), do("instances", "reboot"), {
			Verb: "crash", Command: []string{"fakecloud", "faults", "create", "--crash", "--times=1", "--resource=" + t.CloudID},
		}, terminate}
	case api.InstanceStopped, api.InstanceError:
		return []Act{do("instances", "start"), terminate}
	case api.InstanceTerminated, api.InstanceTerminating:
		return nil
	}
	return []Act{terminate}
}

// CloudActs are what can be done with the cloud as a whole. Snapshots are for admins only. ccmToken is the
// name of the token whose calls faults are meant for; "" is every token.
func CloudActs(ctx context.Context, cloud *client.Client, ccmToken string) ([]Act, error) {
	zones, err := cloud.ListZones(ctx)
	if err != nil {
		return nil, err
	}
	inZone := []Option{{Label: "any"}}
	outage := []Option{{"load balancers are never done", []string{"--stuck", "--kind=load-balancer"}}}
	for _, z := range zones {
		inZone = append(inZone, Option{z.Name, []string{"--zone=" + z.Name}})
		outage = append(outage, Option{"zone " + z.Name + " is lost", []string{"--zone-outage=" + z.Name}})
	}
	acts := []Act{{
		Verb: "create an instance", Command: []string{"fakecloud", "instances", "create"},
		Inputs: []Input{{Label: "zone", Options: inZone}, {Label: "type", Options: []Option{
			{"small", nil}, {"medium", []string{"--type=medium"}}, {"large", []string{"--type=large"}},
		}}},
	}, {
		Verb: "begin a fault", Command: []string{"fakecloud", "faults", "create"},
		Inputs: []Input{
			{Label: "what", Options: slices.Concat(callFaults(ccmToken), outage)},
			{Label: "for", Options: []Option{
				{"a minute", []string{"--for=1m"}}, {"ten minutes", []string{"--for=10m"}}, {"until it is ended", nil},
			}},
		},
	}}
	_, err = cloud.ListSnapshots(ctx)
	if client.HasCode(err, api.Forbidden) {
		return acts, nil
	}
	return append(acts, Act{
		Verb: "save a snapshot", Command: []string{"fakecloud", "snapshots", "save"},
		Inputs: []Input{{Label: "name", Text: "before"}},
	}), err
}

// callFaults are what can go wrong with calls.
func callFaults(token string) []Option {
	var who []string
	name := "all calls"
	if token != "" {
		who, name = []string{"--token=" + token}, "calls of "+token
	}
	of := func(label string, args ...string) Option { return Option{label, slices.Concat(who, args)} }
	return []Option{
		of(name+" fail", "--status=503"), of("one in three of "+name+" fails", "--status=503", "--every=3"),
		of(name+" take 3 s", "--delay=3s"), of("2 a second of "+name+" are let through", "--throttle=2"),
		of("lists are empty", "--empty-list"), of("lists show one item", "--partial-list=1"),
		of("creates lose their answer", "--operation=createLoadBalancer", "--drop", "--carry-out"),
	}
}
