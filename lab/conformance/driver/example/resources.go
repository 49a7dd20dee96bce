package main

// What clouds have, as the API shows it.

import (
	"net/http"
	"strings"
)

type apiInstance struct {
	ID, Name, State, Type, Zone, Region string
	Addresses                           []struct{ Type, IP string }
}

func (i apiInstance) toProtocol() instance {
	shown := instance{
		ID: i.ID, Name: i.Name, ProviderID: "fakecloud://" + i.ID, InternalIPs: []string{}, ExternalIPs: []string{},
		Type: i.Type, Zone: i.Zone, Region: i.Region,
	}
	for _, a := range i.Addresses {
		if a.Type == "external" {
			shown.ExternalIPs = append(shown.ExternalIPs, a.IP)
		} else {
			shown.InternalIPs = append(shown.InternalIPs, a.IP)
		}
	}
	return shown
}

// stateAfter has the state in which each action leaves an instance.
var stateAfter = map[string]string{"stop": "stopped", "start": "running", "terminate": "terminated"}

type target struct {
	InstanceID string `json:"instanceId"`
}

type apiBalancer struct {
	ID, Name, State, Address string
	Tags                     map[string]string
	Listeners                []listener // with protocols in small letters
	Targets                  []target
}

func (b apiBalancer) toProtocol() balancer {
	shown := balancer{
		ID: b.ID, Name: b.Name, Service: b.Tags["kubernetes-service-uid"], Address: b.Address,
		Active: b.State == "active", Listeners: []listener{}, Targets: []string{},
	}
	for _, l := range b.Listeners {
		shown.Listeners = append(shown.Listeners, listener{strings.ToUpper(l.Protocol), l.Port, l.TargetPort})
	}
	for _, t := range b.Targets {
		shown.Targets = append(shown.Targets, t.InstanceID)
	}
	return shown
}

func toProtocol(all []apiBalancer) (shown []balancer) {
	for _, b := range all {
		shown = append(shown, b.toProtocol())
	}
	return shown
}

func toTargets(instanceIDs []string) []target {
	targets := []target{}
	for _, id := range instanceIDs {
		targets = append(targets, target{id})
	}
	return targets
}

// refusal is an answer of the cloud that is an error.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func (r *refusal) Is(target error) bool {
	return target == errNotFound && r.status == http.StatusNotFound
}
