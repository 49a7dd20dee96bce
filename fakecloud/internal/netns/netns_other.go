//go:build !linux

package netns

import (
	"errors"
	"net/netip"
	"syscall"
)

var errLinuxOnly = errors.New("network namespaces are Linux's")

func RootAttr() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }

type Namespace struct{}

func New() (*Namespace, error) { return nil, errLinuxOnly }

func (*Namespace) Do(func()) {}
func (*Namespace) Close()    {}

type Network struct{ Namespace }

func NewNetwork() (*Network, error) { return nil, errLinuxOnly }

func (*Network) Plug(netip.Addr) error { return errLinuxOnly }

func AddAddress(string, netip.Prefix) error { return errLinuxOnly }
func TakeAddress(netip.Addr) error          { return errLinuxOnly }
