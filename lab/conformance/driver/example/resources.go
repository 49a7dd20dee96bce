package main

// What clouds have, as their API shows it, and as the protocol does.

import (
	"errors"
	"net/http"
	"strings"
)

type instance struct {
	ID, Name, State, Type, Zone, Region string
	Addresses                           []struct{ Type, IP string }
}

func (i instance) toProtocol() object {
	internal, external := []string{}, []string{}
	for _, a := range i.Addresses {
		if a.Type == "external" {
			external = append(external, a.IP)
		} else {
			internal = append(internal, a.IP)
		}
	}
	return object{
		"id": i.ID, "name": i.Name, "providerID": "fakecloud://" + i.ID, "internalIPs": internal, "externalIPs": external,
		"type": i.Type, "zone": i.Zone, "region": i.Region,
	}
}

// stateAfter has the state in which each action leaves an instance.
var stateAfter = map[string]string{"stop": "stopped", "start": "running", "terminate": "terminated"}

type listener struct {
	Protocol   string `json:"protocol"`
	Port       int    `json:"port"`
	TargetPort int    `json:"targetPort"`
}

type target struct {
	InstanceID string `json:"instanceId"`
}

type balancer struct {
	ID, Name, State, Address string
	Tags                     map[string]string
	Listeners                []listener
	Targets                  []target
}

func (b balancer) toProtocol() object {
	listeners, targets := []listener{}, []string{}
	for _, l := range b.Listeners {
		listeners = append(listeners, listener{strings.ToUpper(l.Protocol), l.Port, l.TargetPort})
	}
	for _, t := range b.Targets {
		targets = append(targets, t.InstanceID)
	}
	return object{
		"id": b.ID, "name": b.Name, "service": b.Tags["kubernetes-service-uid"], "address": b.Address,
		"active": b.State == "active", "listeners": listeners, "targets": targets,
	}
}

func toTargets(instanceIDs []string) []target {
	targets := []target{}
	for _, id := range instanceIDs {
		targets = append(targets, target{id})
	}
	return targets
}

type portConnections struct {
	Port        int   `json:"port"`
	Connections int64 `json:"connections"`
}

// refusal is an answer of the cloud that is an error.
type refusal struct {
	status int
	text   string
}

func (r *refusal) Error() string { return r.text }

func isNotFound(err error) bool {
	var no *refusal
	return errors.As(err, &no) && no.status == http.StatusNotFound
}
