package cloud

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/ccmlab/ccmlab/fakecloud/api"
	"github.com/ccmlab/ccmlab/fakecloud/store"
	"github.com/ccmlab/ccmlab/fakecloud/store/db"
)

// Quota is a kind of resource whose number is limited in each project.
type Quota string

// What is limited. The names are those in the store.
const (
	QuotaInstances     Quota = "instances" // that are not terminated
	QuotaLoadBalancers Quota = "load-balancers"
	QuotaRoutes        Quota = "routes"
	QuotaNetworks      Quota = "networks" // the default one is among them
	QuotaAddresses     Quota = "addresses"
)

// Quotas are all kinds, in the order in which they are shown.
var Quotas = []Quota{QuotaInstances, QuotaLoadBalancers, QuotaRoutes, QuotaNetworks, QuotaAddresses}

// DefaultQuotas hold for a project for which nothing else was set, unless Config.InstanceQuota does.
var DefaultQuotas = map[Quota]int64{
	QuotaInstances:     12_000,
	QuotaLoadBalancers: 1_200,
	QuotaRoutes:        12_000,
	QuotaNetworks:      50,
	QuotaAddresses:     500,
}

// MaxQuota is the highest limit that can be set.
const MaxQuota = 1_000_000

// QuotaUse is how many resources of a kind a project may have and has. Used is above Limit
// when the limit was lowered.
type QuotaUse struct {
	Quota       Quota
	Limit, Used int64
}

// withinQuota refuses one more resource of a kind if the project has as many as it may.
func (c *Cloud) withinQuota(ctx context.Context, tx *store.Tx, p Project, q Quota) error {
	room, err := tx.Room(ctx, db.RoomParams{ProjectID: p.ID, Kind: string(q), DefaultMax: c.defaultQuota(q)})
	switch {
	case errors.Is(err, sql.ErrNoRows):
		return refuse(NotFound, "project %q was deleted", p.Name)
	case err != nil:
		return err
	case room.Used < room.Max:
		return nil
	}
	what := strings.ReplaceAll(string(q), "-", " ")
	remove := cmp.Or(map[Quota]string{QuotaInstances: "terminate", QuotaAddresses: "release"}[q], "delete")
	advice := cmp.Or(c.cfg.QuotaAdvice, fmt.Sprintf(
		"have an admin raise the quota (PATCH /v1/projects/%s/quotas, or `fakecloud quotas set --project %s --%s N`)",
		p.ID, p.Name, q,
	))
	return refuse(
		QuotaExceeded, "project %q has %d %s, and its quota allows %d: %s unused ones (`fakecloud %s %[5]s NAME`), or %[7]s",
		p.Name, room.Used, what, room.Max, remove, q, advice,
	)
}

// defaultQuota holds for a project for which nothing else was set.
func (c *Cloud) defaultQuota(q Quota) int64 {
	if q == QuotaInstances && c.cfg.InstanceQuota > 0 {
		return c.cfg.InstanceQuota
	}
	return DefaultQuotas[q]
}

// ProjectQuotas gives a project's limits and what it uses of them.
func (c *Cloud) ProjectQuotas(ctx context.Context, project string) ([]QuotaUse, error) {
	return readOne(ctx, c, func(tx *store.Tx) ([]QuotaUse, error) { return c.quotasOf(ctx, tx, project) })
}

// SetQuotas sets some limits of a project. A limit below what the project has refuses
// further creates and deletes nothing.
func (c *Cloud) SetQuotas(ctx context.Context, project string, limits map[Quota]int64) ([]QuotaUse, error) {
	for q, limit := range limits {
		if !slices.Contains(Quotas, q) || limit < 0 || limit > MaxQuota {
			return nil, refuse(
				InvalidRequest, "quota %s of %d: want one of %v, from 0 to %d", q, limit, Quotas, MaxQuota,
			)
		}
	}
	var all []QuotaUse
	err := c.change(ctx, func(ctx context.Context, tx *changeTx) error {
		before, err := c.quotasOf(ctx, tx.Tx, project)
		if err != nil {
			return err
		}
		for _, use := range before {
			if limit, given := limits[use.Quota]; given && limit != use.Limit {
				if err := setQuota(ctx, tx, project, use, limit); err != nil {
					return err
				}
			}
		}
		all, err = c.quotasOf(ctx, tx.Tx, project)
		return err
	})
	return all, err
}

// setQuota sets one limit and writes its event: a program that was refused for its quota may try again.
func setQuota(ctx context.Context, tx *changeTx, project string, before QuotaUse, limit int64) error {
	quota := string(before.Quota)
	if err := tx.SetQuota(ctx, db.SetQuotaParams{ProjectID: project, Kind: quota, Max: limit}); err != nil {
		return err
	}
	return tx.AppendEvent(ctx, db.InsertEventParams{
		ProjectID: project, Time: tx.now.UnixMilli(), Type: string(api.EventUpdated), Resource: string(api.ResourceQuota),
		ResourceID: quota, Name: quota, FromState: strconv.FormatInt(before.Limit, 10),
		ToState: strconv.FormatInt(limit, 10), Body: "{}",
	})
}

func (c *Cloud) quotasOf(ctx context.Context, tx *store.Tx, project string) ([]QuotaUse, error) {
	if _, err := loadProject(ctx, tx, project); err != nil {
		return nil, err
	}
	var all []QuotaUse
	for _, q := range Quotas {
		room, err := tx.Room(ctx, db.RoomParams{ProjectID: project, Kind: string(q), DefaultMax: c.defaultQuota(q)})
		if err != nil {
			return nil, err
		}
		all = append(all, QuotaUse{Quota: q, Limit: room.Max, Used: room.Used})
	}
	return all, nil
}
