// Package jobs is the job table: it starts jobs through a runner, keeps waiting
// clients asleep until something they wait for happens, and removes what is old.
//
// A job that has not ended, or whose end is not in the database yet, is an entry
// in memory; every other one is a row in the store. The path of a job writes the
// store twice: when it is created, and when it has ended. That a job runs is
// known from its runner, also after a restart, and is not written.
//
// Nothing here polls. An entry has a broadcast channel, which is closed and
// replaced at every change; a waiter sleeps on it, on its own timers, and on its
// client's going away.
package jobs
