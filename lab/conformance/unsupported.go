package conformance

import (
	"context"
	"errors"
)

// Unsupported is for a driver to embed: the methods of the features that it does
// not declare.
type Unsupported struct{}

// RenameBalancer returns errors.ErrUnsupported.
func (Unsupported) RenameBalancer(context.Context, string, string) error {
	return errors.ErrUnsupported
}

// ChangeBalancer returns errors.ErrUnsupported.
func (Unsupported) ChangeBalancer(context.Context, string, []Listener, []string) error {
	return errors.ErrUnsupported
}

// ReserveAddress returns errors.ErrUnsupported.
func (Unsupported) ReserveAddress(context.Context) (string, func(context.Context) error, error) {
	return "", nil, errors.ErrUnsupported
}

// CreateStranger returns errors.ErrUnsupported.
func (Unsupported) CreateStranger(context.Context, string) (Balancer, error) {
	return Balancer{}, errors.ErrUnsupported
}

// Connections returns errors.ErrUnsupported.
func (Unsupported) Connections(context.Context, string) (map[int32]int64, error) {
	return nil, errors.ErrUnsupported
}

// Routes returns errors.ErrUnsupported.
func (Unsupported) Routes(context.Context) ([]Route, error) { return nil, errors.ErrUnsupported }

// Route returns errors.ErrUnsupported.
func (Unsupported) Route(context.Context, string) (Route, bool, error) {
	return Route{}, false, errors.ErrUnsupported
}

// DeleteRoute returns errors.ErrUnsupported.
func (Unsupported) DeleteRoute(context.Context, string) error { return errors.ErrUnsupported }

// DivertRoute returns errors.ErrUnsupported.
func (Unsupported) DivertRoute(context.Context, string, string) error { return errors.ErrUnsupported }

// CreateStrangerRoute returns errors.ErrUnsupported.
func (Unsupported) CreateStrangerRoute(context.Context, string, string) (Route, error) {
	return Route{}, errors.ErrUnsupported
}

// LimitRoutes returns errors.ErrUnsupported.
func (Unsupported) LimitRoutes(context.Context) (func(context.Context) error, error) {
	return nil, errors.ErrUnsupported
}

// Inject returns errors.ErrUnsupported.
func (Unsupported) Inject(context.Context, Fault) (Injection, error) {
	return nil, errors.ErrUnsupported
}

// Calls returns errors.ErrUnsupported.
func (Unsupported) Calls(context.Context) (Calls, error) { return Calls{}, errors.ErrUnsupported }

// Zones returns errors.ErrUnsupported.
func (Unsupported) Zones(context.Context) ([]string, error) { return nil, errors.ErrUnsupported }

// LoseZone returns errors.ErrUnsupported.
func (Unsupported) LoseZone(context.Context, string) (Injection, error) {
	return nil, errors.ErrUnsupported
}

// ExpireCredentials returns errors.ErrUnsupported.
func (Unsupported) ExpireCredentials(context.Context) (Expiry, error) {
	return nil, errors.ErrUnsupported
}

// SwapCredentials returns errors.ErrUnsupported.
func (Unsupported) SwapCredentials(context.Context) (Injection, error) {
	return nil, errors.ErrUnsupported
}
