package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"

	"github.com/ccmlab/ccmlab/fakecloud/bench/machine"
)

// report is what is printed.
type report struct {
	Quick   bool            `json:"quick"`
	Machine machine.Machine `json:"machine"`
	Size    size            `json:"size"`
	Server  *server         `json:"server,omitempty"` // nil if no cloud was measured
	Rows    []row           `json:"rows"`
}

// server says which costly things the measured binary does with each call.
type server struct {
	Flags      []string `json:"flags"`
	Audit      bool     `json:"audit"`
	RateLimit  bool     `json:"rateLimit"`
	Validation bool     `json:"validation"`
}

// inspectServer finds out what the binary does with each call.
func (b *bench) inspectServer(ctx context.Context) (*server, error) {
	s := &server{Flags: b.rateLimitFlags, RateLimit: len(b.rateLimitFlags) > 0}
	spec, err := callOnce(ctx, b.cloud.Address, call{request: b.getRequest("/openapi.yaml"), want: http.StatusOK})
	if err != nil {
		return nil, err
	}
	b.quotas = bytes.Contains(spec, []byte("\n  /v1/projects/{id}/quotas:"))
	s.Audit = bytes.Contains(spec, []byte("\n  /v1/audit:"))
	if _, err := callOnce(ctx, b.cloud.Address, call{
		request: httpRequest(http.MethodGet, "/v1/instances", b.cloud.Address, "", nil), want: http.StatusUnauthorized,
	}); err != nil {
		return nil, err
	}
	// The spec forbids this limit, so a server that validates refuses it.
	_, err = callOnce(
		ctx, b.cloud.Address, call{request: b.getRequest("/v1/instances?limit=0"), want: http.StatusBadRequest},
	)
	s.Validation = err == nil
	return s, nil
}

func (r *report) print(out io.Writer, output string) error {
	if output == "json" {
		return machine.PrintJSON(out, r)
	}
	_, _ = fmt.Fprintf(out, "machine  %s\n", r.Machine)
	if r.Machine.FileSystem == "tmpfs" {
		_, _ = fmt.Fprintln(
			out, "         tmpfs keeps nothing: durable costs nothing here; choose a folder on a disk with -dir",
		)
	}
	_, _ = fmt.Fprintf(out, "size     %d clients on the same machine; %s instances and %s load balancers stored\n",
		r.Size.Clients, machine.Grouped(float64(r.Size.Instances)), machine.Grouped(float64(r.Size.Balancers)))
	if r.Server != nil {
		_, _ = fmt.Fprintf(out, "server   authentication on, validation %s, audit %s, rate limiting %s; logs each call to a file\n",
			onOff(r.Server.Validation), onOff(r.Server.Audit), onOff(r.Server.RateLimit))
	}
	if r.Quick {
		_, _ = fmt.Fprintln(out, "quick    the sizes are small: this shows that it works, the figures mean nothing")
	}
	return r.printRows(out)
}

func (r *report) printRows(out io.Writer) error {
	err := machine.PrintTable(out, "FIGURE\tMEASURED\tTARGET", r.Rows, func(r row) ([]string, *bool) {
		return []string{r.Figure, r.Measured, r.Target}, r.Holds
	})
	if err != nil {
		return err
	}
	for _, line := range r.Rows {
		if line.Note != "" {
			_, _ = fmt.Fprintf(out, "%s: %s\n", line.Figure, line.Note)
		}
	}
	return nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "absent"
}
