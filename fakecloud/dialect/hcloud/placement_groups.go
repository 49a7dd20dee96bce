package hcloud

import (
	"context"
	"net/http"
	"slices"

	"github.com/hetznercloud/hcloud-go/v2/hcloud/schema"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/cloud"
	"github.com/ccmlab/ccmlab/fakecloud/dialect"
)

// placementGroups place nothing: a server's record says in which one it is.
var placementGroups = recordCollection("placement_group", toPlacementGroup, "type")

var placementGroupCalls = []dialect.Call{
	dialect.Handle(http.MethodPost, placementGroups.path(), nil, createPlacementGroup).Answers(http.StatusCreated),
	deleteCall(&placementGroups, nil),
	resourceAction(&servers, "add_to_placement_group", addToPlacementGroup),
	resourceAction(&servers, "remove_from_placement_group", removeFromPlacementGroup),
}

// maxInPlacementGroup is how many servers a group of type spread takes.
const maxInPlacementGroup = 10

func toPlacementGroup(ctx context.Context, r *dialect.Request, d *cloud.DialectRecord) (schema.PlacementGroup, error) {
	g := schema.PlacementGroup{
		ID: d.Serial, Name: d.Name, Labels: d.Tags, Created: d.CreatedAt, Type: "spread", Servers: []int64{},
	}
	instances, err := r.Instances(ctx)
	for _, in := range instances {
		var record serverRecord
		if dialect.ReadRecord(name, in.Records, &record) == nil && record.PlacementGroup == d.Serial && isThere(in) {
			g.Servers = append(g.Servers, in.Serial)
		}
	}
	slices.Sort(g.Servers)
	return g, err
}

// isThere tells whether an instance is a server: Hetzner Cloud keeps none that was deleted.
func isThere(in cloud.Instance) bool {
	return in.State != api.InstanceTerminating && in.State != api.InstanceTerminated
}

func createPlacementGroup(ctx context.Context, r *dialect.Request, q schema.PlacementGroupCreateRequest) (any, error) {
	if q.Type != "spread" {
		return nil, dialect.Invalid("type", "must be spread")
	}
	d, err := createRecord(ctx, r, placementGroups.one, q.Name, q.Labels, struct{}{})
	if err != nil {
		return nil, err
	}
	g, err := toPlacementGroup(ctx, r, d)
	return map[string]any{"placement_group": g, "action": nil}, err
}

// findPlacementGroup gives the group that a server is to be in.
func findPlacementGroup(ctx context.Context, r *dialect.Request, serial int64) (g schema.PlacementGroup, err error) {
	d, err := placementGroups.readSerial(ctx, r, serial)
	if err == nil {
		g, err = toPlacementGroup(ctx, r, d)
	}
	if err == nil && len(g.Servers) >= maxInPlacementGroup {
		err = &cloud.Error{Code: "placement_error", Message: "placement group is full"}
	}
	return g, err
}

type placementGroupRequest struct {
	PlacementGroup int64 `json:"placement_group"`
}

func addToPlacementGroup(
	ctx context.Context,
	r *dialect.Request,
	in *api.Instance,
	s *serverRecord,
	q placementGroupRequest,
) error {
	if in.State != api.InstanceStopped {
		return &cloud.Error{Code: "server_not_stopped", Message: "server must be stopped for this action"}
	}
	_, err := findPlacementGroup(ctx, r, q.PlacementGroup)
	s.PlacementGroup = q.PlacementGroup
	return err
}

func removeFromPlacementGroup(
	_ context.Context,
	_ *dialect.Request,
	_ *api.Instance,
	s *serverRecord,
	_ struct{},
) error {
	s.PlacementGroup = 0
	return nil
}
