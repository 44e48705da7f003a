import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Forty numbers to the topic "b", one to a batch, five batches in flight; all must be delivered.
 * Arguments: "idempotent" or "transactional", bootstrap, a name of this run.
 */
public class Pipelined {
    public static void main(String[] arguments) throws Exception {
        boolean transactional = arguments[0].equals("transactional");
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[1]);
        config.put("enable.idempotence", "true");
        config.put("linger.ms", "0");
        config.put("batch.size", "1");
        config.put("max.in.flight.requests.per.connection", "5");
        config.put("retry.backoff.ms", "20");
        if (transactional) {
            config.put("transactional.id", "pipelined-" + arguments[2]);
        }
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(config, text, text)) {
            if (transactional) {
                producer.initTransactions();
                producer.beginTransaction();
            }
            List<Future<RecordMetadata>> sent = new ArrayList<>();
            for (int number = 0; number < 40; number++) {
                sent.add(producer.send(new ProducerRecord<>("b", Integer.toString(number))));
            }
            for (Future<RecordMetadata> each : sent) {
                each.get(60, TimeUnit.SECONDS);
            }
            if (transactional) {
                producer.commitTransaction();
            }
        }
        System.out.print("PASS\n");
    }
}
