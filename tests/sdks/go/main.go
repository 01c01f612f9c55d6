// The Go SDK behind the words and lines of tests/sdks/README.md.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	rmq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
)

var (
	ended = make(chan struct{})
	out   sync.Mutex
	clean = strings.NewReplacer("\n", " ", "\t", " ")
)

func say(words ...any) {
	parts := make([]string, len(words))
	for i, word := range words {
		parts[i] = clean.Replace(fmt.Sprint(word))
	}
	out.Lock()
	defer out.Unlock()
	fmt.Fprintln(os.Stdout, strings.Join(parts, "\t"))
}

func check(err error) {
	if err != nil {
		say("error", err)
		os.Exit(1)
	}
}

func isEnded() bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}

func got(message *rmq.MessageView) string {
	body := string(message.GetBody())
	keys := slices.Sorted(slices.Values(message.GetKeys()))
	tag := ""
	if message.GetTag() != nil {
		tag = *message.GetTag()
	}
	group, due := "", ""
	if message.GetMessageGroup() != nil {
		group = *message.GetMessageGroup()
	}
	if message.GetDeliveryTimestamp() != nil {
		due = strconv.FormatInt(message.GetDeliveryTimestamp().UnixMilli(), 10)
	}
	if group+due != "" {
		say("also", body, group, due, "")
	}
	say("got", body, message.GetMessageId(), message.GetDeliveryAttempt(), tag, strings.Join(keys, ","),
		message.GetProperties()["own"])
	return body
}

// made returns message number n.
func made(topic, prefix string, n int) *rmq.Message {
	message := &rmq.Message{Topic: topic, Body: []byte(fmt.Sprintf("%s-%d", prefix, n))}
	message.SetTag("ab"[n%2 : n%2+1])
	message.SetKeys(fmt.Sprintf("key-%d", n), prefix)
	message.AddProperty("own", fmt.Sprintf("value-%d", n))
	message.AddProperty("n", strconv.Itoa(n))
	return message
}

// send sends one message, and returns whether it was taken.
func send(producer rmq.Producer, message *rmq.Message, transaction rmq.Transaction) bool {
	body, started := string(message.Body), time.Now()
	var receipts []*rmq.SendReceipt
	var err error
	if transaction == nil {
		receipts, err = producer.Send(context.Background(), message)
	} else {
		receipts, err = producer.SendWithTransaction(context.Background(), message, transaction)
	}
	if err != nil {
		say("failed", body, err)
		return false
	}
	if receipts[0].RecallHandle != "" {
		say("handle", body, receipts[0].RecallHandle)
	}
	say("sent", body, receipts[0].MessageID, time.Since(started).Milliseconds())
	return true
}

func special(kind string, config *rmq.Config, topic, prefix string, count int, entries []string) {
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	say("ready")
	for n := range count {
		entry, message := entries[n%len(entries)], made(topic, prefix, n)
		number, _ := strconv.Atoi(entry)
		switch kind {
		case "fifo":
			message.SetMessageGroup(entry)
		case "delay":
			message.SetDelayTimestamp(time.Now().Add(time.Duration(number) * time.Millisecond))
		case "priority":
			check(message.SetPriority(int32(number)))
		}
		send(producer, message, nil)
	}
	check(producer.GracefulStop())
}

func transact(config *rmq.Config, topic, prefix string, count int, ends []string, answer string) {
	answers := map[string]rmq.TransactionResolution{"commit": rmq.COMMIT, "rollback": rmq.ROLLBACK, "unknown": rmq.UNKNOWN}
	checker := &rmq.TransactionChecker{Check: func(message *rmq.MessageView) rmq.TransactionResolution {
		say("checked", string(message.GetBody()), answer)
		return answers[answer]
	}}
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic), rmq.WithTransactionChecker(checker))
	check(err)
	check(producer.Start())
	say("ready")
	for n := range count {
		transaction, message, end := producer.BeginTransaction(), made(topic, prefix, n), ends[n%len(ends)]
		if !send(producer, message, transaction) || end == "leave" {
			continue
		}
		if end == "commit" {
			err = transaction.Commit()
		} else {
			err = transaction.RollBack()
		}
		if err != nil {
			say("failed", string(message.Body), err)
		} else {
			say("ended", string(message.Body), end)
		}
	}
	<-ended
	check(producer.GracefulStop())
}

func recall(config *rmq.Config, topic string, handles []string) {
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	say("ready")
	for _, handle := range handles {
		id, err := producer.Recall(context.Background(), topic, handle)
		if err != nil {
			say("failed", handle, err)
		} else {
			say("recalled", handle, id)
		}
	}
	check(producer.GracefulStop())
}

func produce(config *rmq.Config, topic, prefix string, count, pause int) {
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	say("ready")
	for n := 0; n < count || count == 0 && !isEnded(); n++ {
		send(producer, made(topic, prefix, n), nil)
		time.Sleep(time.Duration(pause) * time.Millisecond)
	}
	check(producer.GracefulStop())
}

func filters(topic, expression string) map[string]*rmq.FilterExpression {
	if sql, found := strings.CutPrefix(expression, "sql:"); found {
		return map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpressionWithType(sql, rmq.SQL92)}
	}
	return map[string]*rmq.FilterExpression{topic: rmq.NewFilterExpression(expression)}
}

func simple(config *rmq.Config, topic, expression string) {
	consumer, err := rmq.NewSimpleConsumer(config, rmq.WithSimpleAwaitDuration(5*time.Second),
		rmq.WithSimpleSubscriptionExpressions(filters(topic, expression)))
	check(err)
	check(consumer.Start())
	say("ready")
	put := map[string]bool{}
	for !isEnded() {
		messages, err := consumer.Receive(context.Background(), 32, 15*time.Second)
		if err != nil && !strings.Contains(err.Error(), "MESSAGE_NOT_FOUND") { // how this SDK says "none"
			say("error", err)
			time.Sleep(200 * time.Millisecond)
		}
		for _, message := range messages {
			body := got(message)
			word := "acked"
			if strings.HasPrefix(body, "later") && !put[body] {
				put[body] = true
				word = "later"
				err = consumer.ChangeInvisibleDuration(message, 10*time.Second)
			} else {
				err = consumer.Ack(context.Background(), message)
			}
			if err != nil {
				say("error", err)
			} else {
				say(word, body)
			}
		}
	}
	check(consumer.GracefulStop())
}

// load sends 1 KiB from several threads; what is sent while it warms up is part of the total alone.
func load(config *rmq.Config, topic string, threads int, warm, seconds float64) {
	producer, err := rmq.NewProducer(config, rmq.WithTopics(topic))
	check(err)
	check(producer.Start())
	say("ready")
	begin := time.Now().Add(time.Duration(warm * float64(time.Second)))
	end := begin.Add(time.Duration(seconds * float64(time.Second)))
	var lock sync.Mutex
	var all sync.WaitGroup
	total, failed, took := 0, 0, []float64{}
	for range threads {
		all.Add(1)
		go func() {
			defer all.Done()
			sent, bad, mine := 0, 0, []float64{}
			for now := time.Now(); now.Before(end); {
				message := &rmq.Message{Topic: topic, Body: make([]byte, 1024)}
				message.SetTag("a")
				_, err := producer.Send(context.Background(), message)
				ended := time.Now()
				if err != nil {
					bad++
				} else {
					sent++
					if !now.Before(begin) {
						mine = append(mine, ended.Sub(now).Seconds()*1e3)
					}
				}
				now = ended
			}
			lock.Lock()
			defer lock.Unlock()
			total, failed, took = total+sent, failed+bad, append(took, mine...)
		}()
	}
	all.Wait()
	slices.Sort(took)
	at := func(share float64) float64 { return took[int(share*float64(len(took)-1))] }
	count := len(took)
	if count == 0 {
		took = []float64{0}
	}
	say("load", total, count, seconds, at(.5), at(.99), failed)
	check(producer.GracefulStop())
}

func push(config *rmq.Config, topic, expression string) {
	var lock sync.Mutex
	failed := map[string]bool{}
	consume := func(message *rmq.MessageView) rmq.ConsumerResult {
		body := got(message)
		if strings.HasPrefix(body, "dead") {
			return rmq.FAILURE
		}
		lock.Lock()
		defer lock.Unlock()
		if strings.HasPrefix(body, "fail") && !failed[body] {
			failed[body] = true
			return rmq.FAILURE
		}
		return rmq.SUCCESS
	}
	consumer, err := rmq.NewPushConsumer(config, rmq.WithPushAwaitDuration(5*time.Second),
		rmq.WithPushSubscriptionExpressions(filters(topic, expression)),
		rmq.WithPushMessageListener(&rmq.FuncMessageListener{Consume: consume}),
		rmq.WithPushConsumptionThreadCount(4), rmq.WithPushMaxCacheMessageCount(1024))
	check(err)
	check(consumer.Start())
	say("ready")
	<-ended
	check(consumer.GracefulStop())
}

func main() {
	if os.Getenv("SDK_PLAINTEXT") != "" {
		rmq.EnableSsl = false
	}
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		close(ended)
	}()
	role, endpoint, topic, name := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	config := &rmq.Config{Endpoint: endpoint, Credentials: &credentials.SessionCredentials{}}
	switch role {
	case "produce":
		count, _ := strconv.Atoi(os.Args[5])
		pause, _ := strconv.Atoi(os.Args[6])
		produce(config, topic, name, count, pause)
	case "fifo", "delay", "priority":
		count, _ := strconv.Atoi(os.Args[5])
		special(role, config, topic, name, count, strings.Split(os.Args[6], ","))
	case "transact":
		count, _ := strconv.Atoi(os.Args[5])
		transact(config, topic, name, count, strings.Split(os.Args[6], ","), os.Args[7])
	case "load":
		threads, _ := strconv.Atoi(name)
		warm, _ := strconv.ParseFloat(os.Args[5], 64)
		seconds, _ := strconv.ParseFloat(os.Args[6], 64)
		load(config, topic, threads, warm, seconds)
	case "recall":
		recall(config, topic, strings.Split(name, ","))
	case "simple":
		config.ConsumerGroup = name
		simple(config, topic, os.Args[5])
	case "push":
		config.ConsumerGroup = name
		push(config, topic, os.Args[5])
	}
	say("done")
}
