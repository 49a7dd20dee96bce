// Package story tells what happens in a cloud, and who calls it, one entry after the other. Begin with
// OfEvent and OfCall.
package story

import (
	"time"

	"github.com/ccmlab/ccmlab/fakecloud/api"
)

// Source is who told what happened.
type Source string

// The cloud's sources.
const (
	// SourceCloud is the cloud's event stream.
	SourceCloud Source = "cloud"
	// SourceCall is the cloud's audit: who called what.
	SourceCall Source = "call"
)

// Change is what happened, without when.
type Change struct {
	Source Source `json:"source"`
	// Subject is what it happened to, as kind/name.
	Subject string `json:"subject"`
	// What happened, in a word or two.
	What string `json:"what"`
	// Detail says more.
	Detail string `json:"detail,omitempty"`
	// Caller is who called the cloud, by the name of the token, or who else tells it.
	Caller string `json:"caller,omitempty"`
	// Failed is true for what is not as somebody wants it: a refused call, or a load
	// balancer in error.
	Failed bool `json:"failed,omitempty"`
	// ID is the cloud's, of the subject.
	ID string `json:"id,omitempty"`
	// CloudSeq is the number of the cloud's event that told it, if one did.
	CloudSeq int64 `json:"cloudSeq,omitempty"`
	// EventKey tells an event that is not the cloud's, and how often it had come, from others.
	EventKey string `json:"eventKey,omitempty"`
	// Call is there for those only.
	Call *Call `json:"call,omitempty"`
}

// Call is one of the cloud's API; Change.What is its operation.
type Call struct {
	Method string `json:"method"`
	Path   string `json:"path"`
	// Status is 0 if the caller broke it off.
	Status int `json:"status"`
	// Code is the problem's, Fault the ID of the fault rule that was applied.
	Code         string  `json:"code,omitempty"`
	Fault        string  `json:"fault,omitempty"`
	Milliseconds float64 `json:"milliseconds"`
	RequestID    string  `json:"requestId"`
	// UserAgent is the calling program's name for itself.
	UserAgent string `json:"userAgent"`
}

// Entry is one thing that happened.
type Entry struct {
	Time time.Time `json:"time"`
	// Seconds since the story's begin.
	Seconds float64 `json:"seconds"`
	Change
}

// NewEntry makes an entry of a story that began at a time.
func NewEntry(began, at time.Time, c Change) Entry {
	return Entry{Time: at, Seconds: float64(int64(at.Sub(began).Seconds()*100+0.5)) / 100, Change: c}
}

// OfEvent tells what an event of the cloud means; ok is false if that is nothing that somebody would tell.
// owner, unless nil, says whose a balancer with the tags is.
func OfEvent(ev api.Event, owner func(api.Tags) string) (c Change, ok bool) {
	tell := func(kind, what, detail string, failed bool) (Change, bool) {
		return Change{
			Source: SourceCloud, Subject: kind + "/" + ev.Name, What: what, Detail: detail, Failed: failed, ID: ev.ID,
			CloudSeq: ev.Seq,
		}, true
	}
	switch {
	case ev.LoadBalancer != nil:
		what := map[string]string{
			string(api.LoadBalancerProvisioning): "requested",
			string(api.LoadBalancerActive):       "provisioned",
			string(api.LoadBalancerUpdating):     "updating",
			string(api.LoadBalancerDeleting):     "deleting",
			string(api.LoadBalancerError):        "error",
		}[ev.To]
		if ev.Type == api.EventDeleted {
			what = "gone"
		}
		if what == "" || (ev.Type != api.EventDeleted && ev.From == ev.To) {
			return c, false
		}
		if what == "provisioned" && ev.From == string(api.LoadBalancerUpdating) {
			what = "updated"
		}
		detail := ev.ID + " at " + ev.LoadBalancer.Address
		if ev.LoadBalancer.Kind == api.KindNetwork {
			detail += " (network)"
		}
		if owner != nil {
			detail += owner(ev.LoadBalancer.Tags)
		}
		if r := ev.LoadBalancer.StateReason; r != "" {
			detail += ": " + r
		}
		return tell("balancer", what, detail, what == "error")
	case ev.Instance != nil && ev.From != ev.To:
		detail := ev.ID + " in " + ev.Instance.Zone
		if ev.Instance.State == api.InstanceError {
			detail += ": " + ev.Instance.StateReason
		}
		return tell("instance", ev.To, detail, ev.Instance.State == api.InstanceError)
	case ev.Route != nil:
		if what, detail := routeChange(ev); what != "" {
			return tell("route", what, detail, what == string(api.RouteBlackhole))
		}
	}
	return c, false
}

// routeChange tells of a route that is there, is gone, or has changed its state: a
// blackhole drops what is sent to it. what is "" if none of that is new.
func routeChange(ev api.Event) (what, detail string) {
	detail = ev.Route.Destination + " via " + ev.Route.InstanceID
	if r := ev.Route.StateReason; r != "" {
		detail += ": " + r
	}
	switch what = ev.To; {
	case ev.Type == api.EventCreated, ev.Type == api.EventDeleted:
		what = string(ev.Type)
	case what == ev.From:
		what = ""
	}
	return what, detail
}
