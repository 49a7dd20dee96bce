// Package scene is the picture of a cloud as data: its objects, how each is, and what belongs to what. Others
// may add objects of their own. A scene is folded from changes, one by one, so that it can be had as of any
// time. Begin with Object, Scene.Apply and the functions that make an Object.
package scene

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
	"time"
)

// Kind is what a thing is.
type Kind string

// Kinds of the cloud's objects.
const (
	KindInstance    Kind = "instance"
	KindBalancer    Kind = "balancer"
	KindRoute       Kind = "route"
	KindAddress     Kind = "address"
	KindFirewall    Kind = "firewall"
	KindCertificate Kind = "certificate"
	// KindFault is a fault that is in force.
	KindFault Kind = "fault"
)

// Level is how well a thing is.
type Level string

// All levels.
const (
	// LevelOK is a thing that is as it should be.
	LevelOK Level = "ok"
	// LevelBusy is a thing that changes or waits.
	LevelBusy Level = "busy"
	// LevelBad is a thing that somebody should look at.
	LevelBad Level = "bad"
	// LevelOff is a thing that is stopped.
	LevelOff Level = "off"
	// LevelUnknown is a source that does not answer.
	LevelUnknown Level = "unknown"
)

// Object is an object of the picture, such as a Node or a balancer, at one point in time.
type Object struct {
	// ID is kind/name, as the timeline's subjects are.
	ID   string `json:"id"`
	Kind Kind   `json:"kind"`
	Name string `json:"name"`
	Zone string `json:"zone,omitempty"`
	// State is a word or two, Reason a sentence where that does not say enough.
	State  string `json:"state"`
	Level  Level  `json:"level"`
	Reason string `json:"reason,omitempty"`
	// CloudID tells apart instances and balancers that had the same name one after the other.
	CloudID string `json:"cloudId,omitempty"`
	// Expires is when a certificate does.
	Expires time.Time `json:"expires,omitzero"`
	// Facts are what else is to be known, in the order in which it is to be read.
	Facts []Fact `json:"facts,omitempty"`
	// Keys are other names by which links find the thing.
	Keys  []string `json:"keys,omitempty"`
	Links []Link   `json:"links,omitempty"`
	// Unknown is what a source that does not answer leaves unknown.
	Unknown *Unknown `json:"unknown,omitempty"`
}

// Fact is one of a thing's.
type Fact struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// Link leads from a thing to another, by its ID or one of its keys. It may lead nowhere.
type Link struct {
	To string `json:"to"`
	// Level and State are of the link itself: the health of a balancer's target.
	Level Level  `json:"level,omitempty"`
	State string `json:"state,omitempty"`
	// Connections are open, BytesPerSecond flow in both directions together.
	Connections    int64 `json:"connections,omitempty"`
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`
}

// Change is a thing's new state, or that it is gone.
type Change struct {
	Time   time.Time `json:"time"`
	Object *Object   `json:"thing,omitempty"`
	// Gone is the ID of a thing that is there no more.
	Gone string `json:"gone,omitempty"`
	// CloudSeq is the number of the cloud's event that told it, if one did.
	CloudSeq int64 `json:"cloudSeq,omitempty"`
}

// Scene has objects by ID.
type Scene map[string]Object

// Apply folds a change into the scene.
func (s Scene) Apply(c Change) {
	if c.Object != nil {
		s[c.Object.ID] = *c.Object
	}
	delete(s, c.Gone)
}

// Changes tells whether a change would change the scene.
func (s Scene) Changes(c Change) bool {
	if c.Object == nil {
		_, there := s[c.Gone]
		return there
	}
	return !reflect.DeepEqual(s[c.Object.ID], *c.Object)
}

// Objects returns the objects of the scene, sorted by kind and name.
func (s Scene) Objects() []Object {
	return slices.SortedFunc(maps.Values(s), func(a, b Object) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.ID, b.ID))
	})
}

// FindByCloudID returns the thing that has the cloud's ID.
func (s Scene) FindByCloudID(id string) (t Object, ok bool) {
	for _, t := range s {
		if t.CloudID == id {
			return t, true
		}
	}
	return t, false
}

// Fold is the scene that changes make.
func Fold(changes []Change) Scene {
	s := Scene{}
	for _, c := range changes {
		s.Apply(c)
	}
	return s
}
