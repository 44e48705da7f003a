import java.util.Properties;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.admin.AdminClient;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.errors.AuthenticationException;
import org.apache.kafka.common.serialization.StringSerializer;

/** Logs in. Arguments: scenario, address, run, protocol, mechanisms, user, password, folder. */
public class Logins {
    public static void main(String[] args) throws Exception {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", args[1]);
        properties.put("security.protocol", args[3]);
        properties.put("ssl.truststore.type", "PEM");
        properties.put("ssl.truststore.location", args[7] + "/cert.pem");
        for (String mechanism : args[4].split(",", -1)) {
            if (args[3].equals("SSL")) {
                properties.put("ssl.keystore.type", "PEM");
                properties.put("ssl.keystore.location", args[7] + "/client-both.pem");
            } else {
                String module = mechanism.equals("PLAIN") ? "plain.Plain" : "scram.Scram";
                properties.put("sasl.mechanism", mechanism);
                properties.put("sasl.jaas.config", "org.apache.kafka.common.security." + module
                    + "LoginModule required username=\"" + args[5] + "\" password=\"" + args[6] + "\";");
            }
            if (args[0].equals("renews")) {
                renews(properties);
            } else {
                logsIn(properties, args[0].equals("accepted"));
            }
        }
        System.out.println("PASS");
    }

    static void logsIn(Properties properties, boolean accepted) throws Exception {
        try (AdminClient admin = AdminClient.create(properties)) {
            admin.listTopics().names().get(30, TimeUnit.SECONDS);
            if (!accepted) throw new AssertionError("the login was accepted");
        } catch (ExecutionException error) {
            if (accepted || !(error.getCause() instanceof AuthenticationException)) throw error;
        }
    }

    /** Writes on one connection for longer than a login holds. */
    static void renews(Properties properties) throws Exception {
        properties.put("acks", "all");
        properties.put("retries", "0");
        properties.put("enable.idempotence", "false");
        StringSerializer text = new StringSerializer();
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(properties, text, text)) {
            long end = System.currentTimeMillis() + 4000;
            while (System.currentTimeMillis() < end) {
                producer.send(new ProducerRecord<>("renewed", "v")).get(30, TimeUnit.SECONDS);
                Thread.sleep(20);
            }
        }
    }
}
