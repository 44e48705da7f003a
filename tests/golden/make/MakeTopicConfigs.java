// Writes Apache Kafka's declarations of topic configs, as JSON, for tests/golden/topic_configs_java.json.
//
//   java -cp "<Kafka's jars>" tests/golden/make/MakeTopicConfigs.java > tests/golden/topic_configs_java.json
import java.util.*;
import java.util.stream.Collectors;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.server.config.ServerTopicConfigSynonyms;
import org.apache.kafka.storage.internals.log.LogConfig;

public class MakeTopicConfigs {
    static String str(String s) { return s == null ? "null" : "\"" + s + "\""; }

    public static void main(String[] args) {
        List<String> out = new ArrayList<>();
        for (String name : LogConfig.configNames()) {
            ConfigDef.ConfigKey key = LogConfig.configKeys().get(name);
            var synonyms = ServerTopicConfigSynonyms.ALL_TOPIC_CONFIG_SYNONYMS.getOrDefault(name, List.of());
            out.add(str(name) + ":{\"type\":" + str(key.type.name())
                + ",\"default\":" + str(key.defaultValue == null ? null : ConfigDef.convertToString(key.defaultValue, key.type))
                + ",\"valid\":" + str(key.validator == null ? "" : key.validator.toString())
                + ",\"internal\":" + key.internalConfig
                + ",\"synonyms\":[" + synonyms.stream().map(s -> str(s.name())).collect(Collectors.joining(",")) + "]}");
        }
        System.out.println("{" + String.join(",\n", out) + "}");
    }
}
