package local

// The addresses of a lab in 127/8. Slot X owns 127.X.0.0/16: the control plane on
// 127.X.0.1, instances and balancers in ranges of their own, and pods. A pod has the
// address 10.X.y.z, because the API server refuses loopback in EndpointSlices; it is
// realised as 127.X.y.z. So one number says which addresses are a lab's, and two labs
// never collide.

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

const (
	firstSlot = 30
	lastSlot  = 99
)

// preferredPorts are the ports of a lab on 127.X.0.1. Another port is used where a
// process holds one of them on 0.0.0.0.
var preferredPorts = map[string]int{
	PortLock:      0, // One of lockPorts.
	PortCloud:     8470,
	PortHcloud:    8471,
	PortOxide:     8472,
	PortBrightbox: 8473,
	PortOCI:       8474,
	PortEtcd:      2379,
	PortEtcdPeer:  2380,
	PortAPIServer: 6443,
	PortKCM:       10257,
	PortCCM:       10258,
	PortScheduler: 10259,
	PortDemo:      8080,
}

// lockPorts are tried in exactly this order, so that all labs of a machine agree on
// one.
var lockPorts = []int{8469, 18469, 28469}

// Names of ports.
const (
	PortLock      = "lock"
	PortCloud     = ComponentCloud
	PortHcloud    = "hcloud"
	PortOxide     = "oxide"
	PortBrightbox = "brightbox"
	PortOCI       = "oci"
	PortEtcd      = "etcd"
	PortEtcdPeer  = "etcd-peer"
	PortAPIServer = "kube-apiserver"
	PortKCM       = "kube-controller-manager"
	PortCCM       = ComponentCCM
	PortScheduler = "kube-scheduler"
	// PortDemo is the demo's, on its balancer and its pods.
	PortDemo = "demo"
)

// Slot is a claimed range. Its lock is a bound listener: its holder owns the slot, and
// the kernel frees it when the last holder ends.
type Slot struct {
	Number int
	Ports  map[string]int
	Lock   *net.TCPListener
}

// ReclaimSlot claims a lab's own slot again. running says that some of its processes
// still run and hold their ports. It retries until ctx ends, because processes that
// were just killed may not have released theirs yet.
func ReclaimSlot(ctx context.Context, slot int, ports map[string]int, running bool) (s *Slot, err error) {
	_ = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(context.Context) (bool, error) {
		s, err = claimSlot(slot, ports, running)
		return err == nil, nil
	})
	return s, err
}

// HoldSlot takes the lock of a lab's own slot while its processes still run.
func HoldSlot(slot int, ports map[string]int) (*Slot, error) { return claimSlot(slot, ports, true) }

// ClaimSlot finds a free slot by binding its ports. It skips the slots in kept, which
// belong to labs that do not run.
func ClaimSlot(kept ...int) (*Slot, error) {
	ports, err := freePorts()
	if err != nil {
		return nil, err
	}
	for x := firstSlot; x <= lastSlot; x++ {
		if slices.Contains(kept, x) {
			continue
		}
		s, err := claimSlot(x, ports, false)
		if err == nil {
			return s, nil
		}
		if !errors.Is(err, errTaken) {
			return nil, err
		}
	}
	return nil, fmt.Errorf(
		"all %d slots (127.%d.0.0/16 to 127.%d.0.0/16) are taken or kept; `lab list` says which labs there are, `lab down --name NAME` frees one",
		lastSlot-firstSlot+1, firstSlot, lastSlot,
	)
}

var errTaken = errors.New("slot is taken")

func claimSlot(x int, ports map[string]int, running bool) (*Slot, error) {
	host := slotAddress(x)
	lock, err := listenTCP(host, ports[PortLock])
	if err != nil {
		return nil, fmt.Errorf("%w: 127.%d.0.0/16: %w", errTaken, x, err)
	}
	for name, port := range ports {
		if name == PortLock || name == PortDemo || running {
			continue
		}
		l, err := listenTCP(host, port)
		if err != nil {
			_ = lock.Close()
			return nil, fmt.Errorf("%w: 127.%d.0.0/16: %w", errTaken, x, err)
		}
		_ = l.Close()
	}
	return &Slot{Number: x, Ports: ports, Lock: lock}, nil
}

// probing is held while ports are tried: two labs of one process that do it at once
// would take each other for somebody on 0.0.0.0, agree on different locks, and share
// a slot.
var probing sync.Mutex

// freePorts are the preferred ports, with replacements for those that are held on
// 0.0.0.0.
func freePorts() (map[string]int, error) {
	probing.Lock()
	defer probing.Unlock()
	// An address no lab uses, and no other process of this machine probes: a
	// port that cannot be bound there is held in every slot.
	pid := os.Getpid()
	probe := fmt.Sprintf("127.29.%d.%d", pid>>8&0xff, pid&0xff)
	ports := map[string]int{}
	for name, port := range preferredPorts {
		if name == PortLock {
			i := slices.IndexFunc(lockPorts, func(p int) bool { return FreePort(probe, p) == p })
			if i < 0 {
				return nil, fmt.Errorf(
					"a lab needs one of the ports %v, and none can be listened on: %w; `lab doctor` says who holds them",
					lockPorts, tryPort(probe, lockPorts[0]),
				)
			}
			ports[name] = lockPorts[i]
			continue
		}
		if ports[name] = FreePort(probe, port); ports[name] == 0 {
			return nil, fmt.Errorf("no port can be listened on: %w; `lab doctor` tells more", tryPort(probe, 0))
		}
	}
	return ports, nil
}

// FreePort is the preferred port if it can be bound, else another; 0 if none can be
// bound.
func FreePort(host string, preferred int) int {
	for _, port := range []int{preferred, 0} {
		if l, err := listenTCP(host, port); err == nil {
			defer func() { _ = l.Close() }()
			return l.Addr().(*net.TCPAddr).Port
		}
	}
	return 0
}

// tryPort is why a port cannot be listened on.
func tryPort(host string, port int) error {
	l, err := listenTCP(host, port)
	if err != nil {
		return err
	}
	return l.Close()
}

func listenTCP(host string, port int) (*net.TCPListener, error) {
	l, err := net.Listen("tcp4", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

func slotAddress(slot int) string { return fmt.Sprintf("127.%d.0.1", slot) }

// Slots are the first and the last X of 127.X.0.0/16 that a lab can have.
func Slots() (first, last int) { return firstSlot, lastSlot }

// PreferredPorts are the ports of a new lab by component. A port that is held on
// 0.0.0.0 is replaced.
func PreferredPorts() map[string]int {
	ports := maps.Clone(preferredPorts)
	delete(ports, PortLock)
	return ports
}

// LockPorts are the ports of which every lab needs one, the same in all slots.
func LockPorts() []int { return append([]int(nil), lockPorts...) }
