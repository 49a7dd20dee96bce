// Package lab is the handle of one lab: a cloud, a cluster and a cloud controller manager
// (CCM) that were brought up together. It finds the lab, says where things of it are and
// what runs, and starts, stops and replaces its CCM. Bringing labs up and down is for
// package lifecycle; what people see of them, for the packages status, compare, explain
// and watch. Begin with Open.
//
// A program that opens labs imports lab/cluster/kinds or lab/lifecycle, too, so that it
// knows the kinds of clusters.
package lab

import (
	"fmt"
	"os"

	"github.com/ccmlab/ccmlab/ccm/contract"
	"github.com/ccmlab/ccmlab/fakecloud/client"
	"github.com/ccmlab/ccmlab/lab/cluster"
	"github.com/ccmlab/ccmlab/lab/process"
	"github.com/ccmlab/ccmlab/lab/state"
	"github.com/ccmlab/ccmlab/lab/timeline"
)

// Lab is one lab, up or half-way.
type Lab struct {
	State   *state.Lab
	Cluster cluster.Cluster
	// Host starts and finds the lab's processes on this machine.
	Host process.Host
	// Say tells a person, who may be nobody, what was done beside what was asked for.
	Say func(format string, args ...any)
	bin cluster.Binaries
}

// Open finds a lab that was brought up before.
func Open(name string) (*Lab, error) {
	st, err := state.Open(name)
	if err != nil {
		return nil, err
	}
	return Attach(st)
}

// OpenDir is Open by the lab's folder.
func OpenDir(dir string) (*Lab, error) {
	st, err := state.OpenDir(dir)
	if err != nil {
		return nil, err
	}
	return Attach(st)
}

// OpenLocked is Open for a command that changes the lab. No other command changes it before
// State.Unlock.
func OpenLocked(name string) (*Lab, error) {
	st, err := state.OpenLocked(name)
	if err != nil {
		return nil, err
	}
	l, err := Attach(st)
	if err != nil {
		st.Unlock()
	}
	return l, err
}

// Attach is Open for a record that has been read.
func Attach(st *state.Lab) (*Lab, error) {
	bin, err := cluster.FindBinaries(st.Bin, st.KubeBin)
	if err != nil {
		return nil, err
	}
	if os.Getenv("LAB_KUBE_BIN") != "" {
		st.KubeBin = bin.Kube
	}
	l := &Lab{State: st, bin: bin, Host: process.Host{Lab: st.Path()}, Say: func(string, ...any) {}}
	kind := cluster.KindNamed(st.Cluster)
	if kind == nil {
		return nil, fmt.Errorf("lab %q has a cluster of kind %q, which this version does not know", st.Name, st.Cluster)
	}
	l.Cluster, err = kind.New(st, bin)
	return l, err
}

// Tag is the tag that marks the cluster's instances and balancers in the cloud.
func (l *Lab) Tag() string { return contract.TagCluster + "=" + l.State.Name }

// Timeline is the lab's record of what happened.
func (l *Lab) Timeline() timeline.Log {
	return timeline.Log{File: l.State.Path("timeline.jsonl"), Start: l.State.StartedAt}
}

// Cloud is a client in the name of the lab.
func (l *Lab) Cloud() (*client.Client, error) { return l.Cluster.Cloud().Client(cluster.CallerLab) }

// BinDirs are the folders to put into PATH.
func (l *Lab) BinDirs() []string { return []string{l.bin.Dir, l.bin.Kube} }

// Kind is the name of the lab's kind of cluster.
func (l *Lab) Kind() string { return cluster.KindName(l.State.Cluster) }

// CloudProvider is what the lab's cluster has, one of cluster.Providers.
func (l *Lab) CloudProvider() string {
	if l.Cluster.Traits().NoCloudProvider {
		return cluster.ProviderNone
	}
	return cluster.ProviderExternal
}
